"""Plain values come back from JSON bit for bit."""

import struct
from collections import Counter, defaultdict, deque
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.saving.plain_values import decode, encode, is_plain, replace_content

ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
    | st.floats(width=32).map(np.float32) | st.integers(-128, 127).map(np.int8)
)  # fmt: skip
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.lists(inner).map(deque)
        | st.sets(st.integers()) | st.frozensets(st.text())
    ),
    max_leaves=20,
)  # fmt: skip


def bits(value: Any) -> Any:
    """Return a value that is equal for values of equal types and bits only, so that nan equals nan, and 0.0 differs from -0.0."""
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    if isinstance(value, complex):
        return complex, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, dict):
        return dict, [(bits(key), bits(each)) for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), value
    if isinstance(value, list | tuple | deque):
        return type(value), [bits(each) for each in value]
    return type(value), value


@given(VALUES)
def test_a_value_comes_back_from_json(value: Any):
    assert is_plain(value)
    assert bits(decode(msgspec.json.decode(msgspec.json.encode(encode(value))))) == bits(value)


def test_other_values_are_not_plain():
    assert not any(map(is_plain, (object(), [object()], {"a": {1: object()}}, np.zeros(3), lambda: None, int)))


def test_counters_and_dicts_with_defaults_keep_their_type_when_their_content_is_replaced():
    counted, grouped = Counter("aab"), defaultdict(list, a=[1])
    assert replace_content(counted, decode(encode(Counter("c")))) and counted["missing"] == 0 and counted == Counter("c")
    assert replace_content(grouped, {"b": [2]}) and grouped["new"] == [] and grouped["b"] == [2]
    assert replace_content(held := deque([1], maxlen=2), deque([3, 4, 5])) and list(held) == [4, 5]
    assert not replace_content((1, 2), (3, 4))


@pytest.mark.parametrize(
    "damaged", [{"$plain": "nothing"}, {"$plain": "int"}, {"$plain": "scalar", "type": "no", "bytes": ""}, {}]
)
def test_a_damaged_value_is_refused(damaged):
    with pytest.raises(IotwinError, match="holds a value that is none"):
        decode(damaged)
