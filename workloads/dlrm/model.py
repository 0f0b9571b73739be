"""The deep learning recommendation model: a tower of dense layers, embedding tables, interactions of both, a second tower."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from iotwin.datagen.layouts import DlrmLayout


def _tower(widths: Sequence[int], last_is_linear: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        # The published initialisation (Naumov et al., 2019): normal, scaled by both widths.
        nn.init.normal_(layer.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(layer.bias, std=(1 / outputs) ** 0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if last_is_linear else layers))


class Dlrm(nn.Module):
    """DLRM (Naumov et al., 2019): a first tower, embedding tables, the interaction of their outputs, and a second tower.

    The first tower and the 26 tables return a vector each. The interaction is the dot products of all pairs of these vectors.
    `rows` has the number of rows of each table. The tables are distributed over `devices` in turn; all other layers are on the
    first device. Gradients of embeddings are sparse.
    """

    def __init__(
        self, rows: Sequence[int], embedding_size: int, bottom: Sequence[int], top: Sequence[int], devices: Sequence[torch.device]
    ) -> None:
        super().__init__()
        self._devices = [devices[index % len(devices)] for index in range(len(rows))]
        self.bottom = _tower([DlrmLayout.DENSE, *bottom, embedding_size], last_is_linear=False).to(devices[0])
        self.tables = nn.ModuleList(
            nn.Embedding(count, embedding_size, sparse=True, device=device)
            for count, device in zip(rows, self._devices, strict=True)
        )
        for table, count in zip(self.tables, rows, strict=True):
            nn.init.uniform_(table.weight, -((1 / count) ** 0.5), (1 / count) ** 0.5)
        vectors = len(rows) + 1
        self._pairs = torch.tril_indices(vectors, vectors, offset=-1, device=devices[0])
        self.top = _tower([embedding_size + self._pairs.shape[1], *top, 1], last_is_linear=True).to(devices[0])

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Return the logits [n] of a click for `dense` [n, 13] and `categories` [26, n], both on the first device."""
        vector = self.bottom(dense)
        looked_up = [
            table(numbers.to(device)).to(dense.device)
            for table, numbers, device in zip(self.tables, categories, self._devices, strict=True)
        ]
        vectors = torch.stack([vector, *looked_up], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat((vector, products[:, self._pairs[0], self._pairs[1]]), dim=1))[:, 0]
