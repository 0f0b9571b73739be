"""NumPy element types by the names that workloads and data sets use."""

import numpy as np


def element_type(word: str) -> np.dtype[np.generic] | None:
    """Return the numpy type named `word`; None if numpy has no such type, or if it is structured or of Python objects."""
    try:
        element = np.dtype(word)
    except (TypeError, SyntaxError, ValueError):  # numpy parses the word as a Python literal if it looks like one
        return None
    return element if element.itemsize and not element.hasobject and element.fields is None and element.subdtype is None else None
