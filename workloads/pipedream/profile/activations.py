"""Writes the layers' outputs of one minibatch, and their gradients, to files; measures their zeros and how well they compress."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, fx

from iotwin.common.files import make_folder, open_whole
from iotwin.workloads.pipedream.converter.layers import node_ids


class ActivationFiles:
    """A folder with a file ID.npz for each call of a traced model: the arrays output0, ... and their gradients, gradient0, ..."""

    def __init__(self, folder: Path, traced: fx.GraphModule) -> None:
        make_folder(folder)
        self._folder, self._ids = folder, node_ids(traced)
        self._layers: dict[str, dict[str, Any]] = {}
        # For outputs and for gradients: [bytes, bytes after compression, number of elements, number of zeros].
        self._totals = {"output": np.zeros(4), "gradient": np.zeros(4)}

    def write(self, node: fx.Node, outputs: dict[int, Tensor], gradients: dict[int, Tensor]) -> None:
        """Write the file of a call. Both dictionaries have tensors by the index of the output."""
        arrays = {
            f"{kind}{index}": tensor.detach().cpu().numpy()
            for kind, tensors in (("output", outputs), ("gradient", gradients))
            for index, tensor in tensors.items()
        }
        path = self._folder / f"{self._ids[node]}.npz"
        with open_whole(path) as file:
            np.savez_compressed(file, **arrays)
        with zipfile.ZipFile(path) as written:
            compressed = {each.filename.removesuffix(".npy"): each.compress_size for each in written.infolist()}
        layer: dict[str, Any] = {"id": self._ids[node]}
        for kind, total in self._totals.items():
            own = np.zeros(4)
            for name, array in arrays.items():
                if name.startswith(kind):
                    own += array.nbytes, compressed[name], array.size, array.size - np.count_nonzero(array)
            total += own
            layer |= _shares(kind, own)
        self._layers[self._ids[node]] = layer

    def document(self) -> dict[str, Any]:
        """Return the sums over all calls, and the calls in the order of execution, as a JSON object."""
        sums = {name: share for kind, total in self._totals.items() for name, share in _shares(kind, total).items()}
        layers = [self._layers[name] for name in self._ids.values() if name in self._layers]
        return {"directory": str(self._folder), **sums, "layers": layers}


def _shares(kind: str, total: np.ndarray) -> dict[str, float | None]:
    """Return the share of zeros, and how many times fewer bytes compressed arrays have; None without arrays."""
    size_bytes, compressed, numbers, zeros = map(float, total)
    return {
        f"{kind}_sparsity": zeros / numbers if numbers else None,
        f"{kind}_compression_ratio": size_bytes / compressed if size_bytes else None,
    }
