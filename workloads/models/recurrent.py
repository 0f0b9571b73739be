"""Recurrent networks, unrolled cell by cell, so that each step's tensors can be evicted alone."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models import Sizes
from iotwin.workloads.models.built import Built

_Cell = type[nn.LSTMCell] | type[nn.GRUCell]


class _Unrolled(nn.Module):
    """Layers of cells. Returns the outputs of the last layer for each element of a sequence."""

    def __init__(self, cell: _Cell, before: int, width: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cell(width if index else before, width) for index in range(layers))
        self.dropout = dropout

    def forward(self, sequence: Tensor) -> list[Tensor]:
        outputs = list(sequence)
        for index, cell in enumerate(self.cells):
            state = None
            for step, element in enumerate(outputs):
                state = cell(functional.dropout(element, self.dropout, self.training) if index else element, state)
                outputs[step] = state[0] if isinstance(cell, nn.LSTMCell) else state
        return outputs


class _Last(nn.Module):
    """Predicts a vector from the output for the last element."""

    def __init__(self, cell: _Cell, before: int, width: int) -> None:
        super().__init__()
        self.unrolled = _Unrolled(cell, before, width)
        self.last = nn.Linear(width, before)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.last(self.unrolled(sequence)[-1])


def _last(cell: _Cell, sizes: Sizes) -> Built:
    before, width, length = (int(sizes[key]) for key in ("in_dim", "mem_dim", "length"))

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(length, batch, before), torch.randn(batch, before)

    return Built(_Last(cell, before, width), inputs, lambda model, x, y: functional.mse_loss(model(x), y))


def lstm(preset: str, sizes: Sizes) -> Built:
    """Return an LSTM. `sizes`: in_dim, mem_dim (its width), and length, the elements of a sequence."""
    return _last(nn.LSTMCell, sizes)


def gru(preset: str, sizes: Sizes) -> Built:
    """Return a GRU with the sizes of `lstm`."""
    return _last(nn.GRUCell, sizes)


class _WordModel(nn.Module):
    """Predicts the next word by two layers of cells."""

    def __init__(self, cell: _Cell, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.unrolled = _Unrolled(cell, width, width, 2, 0.2)
        self.last = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        embedded = functional.dropout(self.embedding(words), 0.2, self.training)
        return self.last(functional.dropout(torch.stack(self.unrolled(embedded)), 0.2, self.training))


def words_and_next(words: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Return a function that makes sequences of `length` of `words` random words, and for each word the one that follows."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        text = torch.randint(0, words, (length + 1, batch))
        return text[:-1].clone(), text[1:].clone()

    return inputs


def _encoder(cell: _Cell, sizes: Sizes) -> Built:
    words, width, length = (int(sizes[key]) for key in ("words", "width", "length"))
    return Built(
        _WordModel(cell, words, width),
        words_and_next(words, length),
        lambda model, x, y: functional.cross_entropy(model(x).flatten(0, 1), y.flatten()),
    )


def lstm_encoder(preset: str, sizes: Sizes) -> Built:
    """Return a language model of two LSTM layers. `sizes`: words of the vocabulary, width, and length of a sequence."""
    return _encoder(nn.LSTMCell, sizes)


def gru_encoder(preset: str, sizes: Sizes) -> Built:
    """Return a language model of two GRU layers with the sizes of `lstm_encoder`."""
    return _encoder(nn.GRUCell, sizes)


class _Tree(nn.Module):
    """A binary tree of LSTM cells with a forget gate for each child (Tai et al. 2015).

    The children of node n are the nodes 2n + 1 and 2n + 2.
    """

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(before, 4 * width)
        self.of_children = nn.Linear(width, 3 * width, bias=False)
        self.forget = nn.Linear(width, width, bias=False)
        self.width = width

    def forward(self, nodes: Tensor) -> Tensor:
        """Return the memory of the root. `nodes` has the shape (nodes, rows, features)."""
        states: dict[int, tuple[Tensor, Tensor]] = {}
        for node in reversed(range(len(nodes))):
            children = [states.pop(child) for child in (2 * node + 1, 2 * node + 2) if child < len(nodes)]
            states[node] = self._cell(nodes[node], children)
        return states[0][0]

    def _cell(self, node: Tensor, children: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        gates, kept = self.of_input(node).split((3 * self.width, self.width), -1)
        if children:
            gates = gates + self.of_children(children[0][1] + children[1][1])
        gate, out, value = gates.chunk(3, -1)
        memory = gate.sigmoid() * value.tanh()
        for child_memory, output in children:
            memory = memory + (kept + self.forget(output)).sigmoid() * child_memory
        return memory, out.sigmoid() * memory.tanh()


def _nodes(sizes: Sizes) -> int:
    return int(2 ** (sizes["dep"] + 1) - 1)


def treelstm(preset: str, sizes: Sizes) -> Built:
    """Return a tree LSTM. `sizes`: in_dim, mem_dim (its width), and dep: below the root are `dep` levels of nodes."""
    before, width = int(sizes["in_dim"]), int(sizes["mem_dim"])

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(_nodes(sizes), batch, before), torch.randn(batch, width)

    return Built(_Tree(before, width), inputs, lambda model, x, y: functional.mse_loss(model(x), y))


class _Similarity(nn.Module):
    """Compares the trees of two sentences."""

    def __init__(self, words: int, before: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, before)
        self.tree = _Tree(before, width)
        self.head = nn.Sequential(nn.Linear(2 * width, hidden), nn.Sigmoid(), nn.Linear(hidden, 5), nn.LogSoftmax(-1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        first, second = self.tree(self.embedding(left)), self.tree(self.embedding(right))
        return self.head(torch.cat([first * second, (first - second).abs()], -1))


def treelstm_old(preset: str, sizes: Sizes) -> Built:
    """Return a tree LSTM that grades how similar two sentences of random words are.

    `sizes`: words of the vocabulary, in_dim, mem_dim, hidden_dim, and dep as of `treelstm`.
    """
    words, before, width, hidden = (int(sizes[key]) for key in ("words", "in_dim", "mem_dim", "hidden_dim"))

    def inputs(batch: int) -> tuple[Tensor, ...]:
        sentences = torch.randint(0, words, (2, _nodes(sizes), batch))
        return sentences[0].clone(), sentences[1].clone(), torch.rand(batch, 5).softmax(-1)

    return Built(
        _Similarity(words, before, width, hidden),
        inputs,
        lambda model, left, right, grades: functional.kl_div(model(left, right), grades, reduction="batchmean"),
    )
