"""Pack arrays as text for an HTML page: little-endian, deflated, in base64, with the type and scale that a reader needs."""

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from iotwin.trace_visuals.bins import Floats
from iotwin.trace_visuals.call_columns import Ints

_LEVEL = 6
_MOST_U32 = 2**32 - 1


def pack(values: npt.NDArray[Any], scale: float = 1.0) -> dict[str, Any]:
    """Return the array (any shape, flattened) as {type, scale, data}; a reader multiplies each number by `scale`."""
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(zlib.compress(little.tobytes(), _LEVEL)).decode("ascii")
    return {"type": values.dtype.name, "scale": scale, "data": data}


def pack_whole(values: Ints) -> dict[str, Any]:
    """Pack non-negative whole numbers in 32 bits each: exactly if all fit, else as multiples of the smallest unit that fits."""
    unit = max(1, -(-int(values.max(initial=0)) // _MOST_U32))
    return pack((-(-values // unit)).astype(np.uint32), unit)


def pack_share(values: Floats) -> dict[str, Any]:
    """Pack numbers in [0, 1] in 16 bits each, rounded up, so that no number above 0 becomes 0."""
    return pack(np.ceil(values * 65535 - 1e-9).clip(0, 65535).astype(np.uint16), 1 / 65535)


def pack_amount(values: Floats) -> dict[str, Any]:
    """Pack non-negative numbers in 32 bits each, as multiples of the greatest number divided by 2**32."""
    unit = float(values.max(initial=0)) / _MOST_U32 or 1.0
    return pack(np.ceil(values / unit - 1e-9).clip(0, _MOST_U32).astype(np.uint32), unit)


def pack_rising(values: Ints) -> dict[str, Any]:
    """Pack a rising sequence of whole numbers as differences in 32 bits each, exact unless a difference exceeds 2**32."""
    unit = max(1, -(-int(np.diff(values, prepend=0).max(initial=0)) // (_MOST_U32 - 1)))
    return pack(np.diff(values // unit, prepend=0).astype(np.uint32), unit)
