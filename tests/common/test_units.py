"""Numbers with their nouns and units, as people read them."""

import pytest

from iotwin.common.units import counted


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [
        (1, "loader", "1 loader"), (0, "call", "0 calls"), (2_000, "event", "2,000 events"), (2, "batch", "2 batches"),
        (3, "copy", "3 copies"), (2, "epoch", "2 epochs"), (2, "pass", "2 passes"), (1, "process", "1 process"),
        (4, "torn line", "4 torn lines"),
    ],
)  # fmt: skip
def test_a_noun_has_the_number_of_its_count(number, thing, text):
    assert counted(number, thing) == text
