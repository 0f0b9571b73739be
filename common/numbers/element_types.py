"""NumPy element types as workloads and data sets name them."""

import numpy as np


def element_type(word: str) -> np.dtype[np.generic] | None:
    """Return the type of elements that numpy calls `word`; None when it is none, or one whose elements are no plain bytes."""
    try:
        element = np.dtype(word)
    except (TypeError, SyntaxError, ValueError):  # numpy parses lists and literals in it
        return None
    return element if element.itemsize and not element.hasobject and element.fields is None and element.subdtype is None else None
