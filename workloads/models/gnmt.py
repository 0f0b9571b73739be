"""GNMT (Wu et al. 2016): an LSTM encoder and an LSTM decoder with attention, as in PipeDream's translation runtime."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models.built import Built

_DROPOUT = 0.2


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.vector = nn.Parameter(torch.randn(width) / width**0.5)

    def shares(self, queries: Tensor, values: Tensor) -> Tensor:
        """Return the attention that each target word (dimension 0) pays to each source word (1) of a sentence (2)."""
        scores = torch.tanh(self.query(queries).unsqueeze(1) + self.key(values).unsqueeze(0)) @ self.vector
        return scores.softmax(1)

    def forward(self, queries: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("tsb,sbw->tbw", self.shares(queries, values), values)


class _Gnmt(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width, padding_idx=0)
        self.target = nn.Embedding(vocabulary, width, padding_idx=0)
        self.forth_and_back = nn.LSTM(width, width, bidirectional=True)
        self.encoder = nn.ModuleList([nn.LSTM(2 * width, width), nn.LSTM(width, width), nn.LSTM(width, width)])
        self.first = nn.LSTM(width, width)
        self.attention = _Attention(width)
        self.decoder = nn.ModuleList([nn.LSTM(2 * width, width) for _ in range(3)])
        self.dropout = nn.Dropout(_DROPOUT)
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded, _ = self.forth_and_back(self.source(source))
        encoded, _ = self.encoder[0](self.dropout(encoded))
        for layer in self.encoder[1:]:
            out, _ = layer(self.dropout(encoded))
            encoded = out + encoded
        decoded, _ = self.first(self.target(target))
        context = self.attention(decoded, encoded)
        for index, layer in enumerate(self.decoder):
            out, _ = layer(torch.cat([self.dropout(decoded), context], 2))
            decoded = out + decoded if index else out
        return self.classifier(decoded)


def gnmt(preset: str) -> Built:
    """Return the model. With the preset paper it is PipeDream's GNMT-8: 4 encoder and 4 decoder layers of width 1024."""
    vocabulary, width, length = (32320, 1024, 50) if preset == "paper" else (64, 16, 8)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        source, target = torch.randint(1, vocabulary, (length, batch)), torch.randint(1, vocabulary, (length + 1, batch))
        return source, target[:-1], target[1:]

    def loss(model: nn.Module, source: Tensor, before: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(model(source, before).flatten(0, 1), target.flatten())

    return Built(_Gnmt(vocabulary, width), inputs, loss)
