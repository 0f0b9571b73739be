"""Transformers (Vaswani et al. 2017): encoders for tokens, the encoder with decoder that PyTorch has, and GPT-2."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.common.errors import UsageError
from iotwin.workloads.models import Sizes
from iotwin.workloads.models.built import Built
from iotwin.workloads.models.recurrent import words_and_next


class _TransformerLayer(nn.Module):
    """A layer that normalises its inputs first.

    `longest`: the number of words of the longest sequence. If it is given, the layer is causal: no word sees a later one.
    """

    def __init__(self, width: int, heads: int, longest: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        mask = None if longest is None else torch.full((longest, longest), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.mix(self.norms[0](x)).chunk(3, -1)  # three names, since torch.fx does not trace iterations
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (query, key, value))
        scores = query @ key.transpose(-2, -1) / (width / self.heads) ** 0.5
        weights = (scores if self.mask is None else scores + self.mask).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.norms[1](x))


def transformer(preset: str, sizes: Sizes) -> Built:
    """Return four encoder layers for tokens (tiny), or PyTorch's transformer of 12 encoder and 6 decoder layers (paper)."""
    length, width = int(sizes["input_seq_length"]), int(sizes["num_feature"])
    heads = 16 if preset == "paper" else 4
    if width % heads:
        raise UsageError(f"transformer: num_feature must be a multiple of {heads} (got {width})")
    if preset == "tiny":
        layers = [_TransformerLayer(width, heads) for _ in range(4)]
        model = nn.Sequential(nn.Embedding(50, width), *layers, nn.LayerNorm(width), nn.Linear(width, 50))
        return Built(model, lambda batch: _tokens(batch, length), lambda model, x, y: _classified(model(x), y))

    def inputs(batch: int) -> tuple[Tensor, ...]:
        target = (int(sizes["target_seq_length"]), batch, width)
        return torch.rand(length, batch, width), torch.rand(target), torch.rand(target)

    pair = nn.Transformer(width, heads, num_encoder_layers=12)
    return Built(pair, inputs, lambda model, x, given, y: functional.mse_loss(model(x, given), y))


def _tokens(batch: int, length: int) -> tuple[Tensor, ...]:
    return torch.randint(0, 50, (batch, length)), torch.randint(0, 50, (batch, length))


def _classified(scores: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), classes.flatten())


class _WordEncoder(nn.Module):
    """Two encoder layers that see only earlier words."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, width, 0.2) for _ in range(2))
        self.last = nn.Linear(width, words)
        angles = torch.arange(length).unsqueeze(1) * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).reshape(length, 1, -1)[:, :, :width])
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, words: Tensor) -> Tensor:
        out = self.embedding(words) * math.sqrt(self.embedding.embedding_dim) + self.positions
        out = functional.dropout(out, 0.2, self.training)
        for layer in self.layers:
            out = layer(out, self.mask)
        return self.last(out)


def transformer_encoder(preset: str, sizes: Sizes) -> Built:
    """Return a language model of two encoder layers. `sizes`: words of the vocabulary, width, and length of a sequence."""
    words, width, length = (int(sizes[key]) for key in ("words", "width", "length"))
    if width % 2:
        raise UsageError(f"transformer_encoder: width must be even (got {width})")
    return Built(_WordEncoder(words, width, length), words_and_next(words, length), lambda model, x, y: _classified(model(x), y))


class _Gpt(nn.Module):
    """GPT-2 (Radford et al. 2019): the scores of the next word are products with the embeddings of all words."""

    def __init__(self, words: int, width: int, length: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(_TransformerLayer(width, heads, length) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.last.weight = self.words.weight
        self.register_buffer("order", torch.arange(length), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        out = self.words(words) + self.places(self.order)
        for layer in self.layers:
            out = layer(out)
        return self.last(self.norm(out))


def gpt(preset: str, sizes: Sizes) -> Built:
    """Return GPT-2. `sizes`: words of the vocabulary, width, length of a text, and layers; each head is 64 wide (paper) or 8."""
    words, width, length, layers = (int(sizes[key]) for key in ("words", "width", "length", "layers"))
    head = 64 if preset == "paper" else 8
    if width % head:
        raise UsageError(f"gpt: width must be a multiple of {head} (got {width})")

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return tuple(each.T.contiguous() for each in words_and_next(words, length)(batch))

    return Built(_Gpt(words, width, length, layers, width // head), inputs, lambda model, x, y: _classified(model(x), y))
