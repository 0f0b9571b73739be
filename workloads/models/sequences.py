"""Small models for vectors, which a CPU trains in milliseconds."""

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
    """Return four fully connected layers, each followed by dropout. A pipeline of up to four stages can train this model."""
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
    """Three layers between an embedding and a last layer. The embedding and the last layer share their weights."""

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
