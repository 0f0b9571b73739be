"""Small models for vectors, sequences and trees, which a CPU trains in milliseconds."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models.built import Built


def mlp() -> Built:
    """Return eight fully connected layers."""
    layers: list[nn.Module] = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 64), torch.randint(0, 64, (batch,))

    return Built(nn.Sequential(*layers), inputs, lambda model, x, y: functional.cross_entropy(model(x), y))


def mlp4() -> Built:
    """Return four fully connected layers, each followed by dropout, which a pipeline of up to four stages can train."""
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4)]
    return Built(nn.Sequential(*layers), _vectors, lambda model, x, y: functional.cross_entropy(model(x), y))


class _Skip(nn.Module):
    """Four layers, and a connection from the first to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, vectors: Tensor) -> Tensor:
        first = torch.tanh(self.layers[0](vectors))
        out = torch.tanh(self.layers[2](torch.tanh(self.layers[1](first))))
        return self.layers[3](out + first)


def skip4() -> Built:
    """Return four fully connected layers with a connection from the first to the last."""
    return Built(_Skip(), _vectors, lambda model, x, y: functional.cross_entropy(model(x), y))


class _Tied(nn.Module):
    """Three layers between an embedding and a last layer, which share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 16)
        self.layers = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.Tanh())))
        self.last = nn.Linear(16, 24)
        self.last.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.layers(self.embedding(tokens)))


def tied() -> Built:
    """Return a model whose first and last layers share their weights (Press and Wolf 2017)."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randint(0, 24, (batch,)), torch.randint(0, 24, (batch,))

    return Built(_Tied(), inputs, lambda model, x, y: functional.cross_entropy(model(x), y))


def _vectors(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 16), torch.randint(0, 16, (batch,))


class _Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 32)
        self.last = nn.Linear(32, 16)

    def forward(self, sequence: Tensor) -> Tensor:
        state = (sequence.new_zeros(sequence.shape[1], 32), sequence.new_zeros(sequence.shape[1], 32))
        for element in sequence:
            state = self.cell(element, state)
        return self.last(state[0])


def lstm() -> Built:
    """Return an LSTM, unrolled over 24 elements."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(24, batch, 16), torch.randn(batch, 16)

    return Built(_Unrolled(), inputs, lambda model, x, y: functional.mse_loss(model(x), y))


class _Tree(nn.Module):
    """A binary tree of LSTM cells with a forget gate for each child (Tai et al. 2015)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 3 * width)
        self.node = nn.Linear(2 * width, 5 * width)

    def forward(self, leaves: Tensor) -> Tensor:
        states = []
        for leaf in leaves:
            gate, out, value = self.leaf(leaf).chunk(3, -1)
            cell = gate.sigmoid() * value.tanh()
            states.append((out.sigmoid() * cell.tanh(), cell))
        while len(states) > 1:
            pairs = zip(states[::2], states[1::2], strict=True)
            states = [self._join(left, right) for left, right in pairs]
        return states[0][0]

    def _join(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gate, out, value, keep_left, keep_right = self.node(torch.cat([left[0], right[0]], -1)).chunk(5, -1)
        cell = gate.sigmoid() * value.tanh() + keep_left.sigmoid() * left[1] + keep_right.sigmoid() * right[1]
        return out.sigmoid() * cell.tanh(), cell


def treelstm() -> Built:
    """Return a tree LSTM over 16 leaves."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(16, batch, 16), torch.randn(batch, 16)

    return Built(_Tree(), inputs, lambda model, x, y: functional.mse_loss(model(x), y))


class _TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.mix(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (query, key, value))
        weights = (query @ key.transpose(-2, -1) / (width / self.heads) ** 0.5).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.norms[1](x))


def transformer() -> Built:
    """Return four transformer encoder layers (Vaswani et al. 2017) for 16 tokens."""
    layers = [_TransformerLayer(32, 4) for _ in range(4)]

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randint(0, 50, (batch, 16)), torch.randint(0, 50, (batch, 16))

    model = nn.Sequential(nn.Embedding(50, 32), *layers, nn.LayerNorm(32), nn.Linear(32, 50))
    return Built(model, inputs, lambda model, x, y: functional.cross_entropy(model(x).flatten(0, 1), y.flatten()))
