"""Arrow columns over numpy arrays, without a copy and without ``pa.array``, which imports pandas: 40 MB that a tracer spares."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def column(values: NDArray[np.generic], kind: pa.DataType, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return the values, shape (n,), as a column of the fixed-width type `kind` of the same width; null where `missing`."""
    if values.itemsize * 8 != kind.bit_width:
        raise TypeError(f"{values.dtype} is no {kind}")
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def labels(codes: NDArray[np.int16], names: Sequence[str]) -> pa.DictionaryArray:
    """Return the column of the names that the codes, shape (n,), number."""
    content = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, content)]).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(content)))
    return pa.DictionaryArray.from_arrays(column(codes, pa.int16()), texts)
