"""Compares the checkpoints that two runs leave, byte for byte or else value for value."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.untrusted_files import open_foreign
from iotwin.workloads.detrain.court.first_difference import Difference

_CHUNK_BYTES = 1 << 20
_MISSING = object()


class FinalFiles(msgspec.Struct, frozen=True):
    """The comparison of two folders. `bytes_equal`: True if all files are equal byte for byte.

    Files with other bytes may still hold equal values, for instance in another order.
    """

    bytes_equal: bool
    difference: Difference | None
    differing: list[str]


def compare_files(expected: Path, found: Path, names: Collection[str]) -> FinalFiles:
    """Compare the files `names` (relative paths) of folder `expected` with those of folder `found`.

    A file that is missing in `found` is searched in its other folders: frameworks put the files of a resumed run into a new
    folder, such as version_1.
    """
    bytes_equal, first, differing = True, None, []
    for name in sorted(names):
        path, other = expected / name, _counterpart(found, name)
        if not path.is_file():
            continue
        if other is None:
            where: str | None = "is missing"
        elif _same_bytes(path, other):
            continue
        else:
            where = _first_value(path, other)
        bytes_equal = False
        if where is not None:
            differing.append(name)
            first = first or Difference(None, "bytes", f"{name} {where}".strip())
    return FinalFiles(bytes_equal, first, differing)


def _counterpart(folder: Path, name: str) -> Path | None:
    path = folder / name
    if path.is_file():
        return path
    others = [each for each in folder.rglob(path.name) if each.is_file()]
    return max(others, key=lambda each: each.stat().st_mtime_ns, default=None)


def _same_bytes(path: Path, other: Path) -> bool:
    if path.stat().st_size != other.stat().st_size:
        return False
    with open_foreign(path) as file, open_foreign(other) as found:
        while chunk := file.read(_CHUNK_BYTES):
            if chunk != found.read(_CHUNK_BYTES):
                return False
    return True


def _first_value(path: Path, other: Path) -> str | None:
    """Return where the values of two files first differ, "" if their values cannot be read, None if all are equal."""
    try:
        expected, found = _values(path), _values(other)
    except Exception:  # a damaged or foreign file fails in many ways; its bytes differ
        return ""
    return _difference(expected, found, "")


def _values(path: Path) -> Any:
    import numpy as np
    import torch

    rebuild = np.ndarray(0).__reduce__()[0]  # pickles name this function to rebuild arrays, such as those of NumPy's generator
    allowed = [np.ndarray, np.dtype, rebuild, *(type(np.dtype(kind)) for kind in np.sctypeDict.values())]
    with torch.serialization.safe_globals(allowed):
        return torch.load(path, map_location="cpu", weights_only=True)


def _difference(expected: Any, found: Any, path: str) -> str | None:
    """Return the path to the first difference of two nested values, None if there is none."""
    import numpy as np
    import torch

    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        from iotwin.workloads.detrain.court.update_log import tensor_digest

        return None if tensor_digest(expected) == tensor_digest(found) else path
    if isinstance(expected, np.ndarray) and isinstance(found, np.ndarray):
        return None if expected.tobytes() == found.tobytes() and expected.dtype == found.dtype else path
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = dict.fromkeys([*expected, *found])
        parts = ((f"{path}[{key!r}]", expected.get(key, _MISSING), found.get(key, _MISSING)) for key in keys)
        return next((at for name, a, b in parts if (at := _difference(a, b, name)) is not None), None)
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return next((at for index, (a, b) in pairs if (at := _difference(a, b, f"{path}[{index}]")) is not None), None)
    both_nan = isinstance(expected, float) and isinstance(found, float) and math.isnan(expected) and math.isnan(found)
    return None if both_nan or expected == found else path
