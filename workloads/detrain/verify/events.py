"""The events of a recorded step, and the first one that differs between two runs."""

from difflib import SequenceMatcher
from pathlib import Path

import msgspec

from iotwin.common.foreign_files import decode_foreign, read_foreign_lines
from iotwin.workloads.detrain.verify.compared_steps import StepDifference, What

_MOST_LINE_BYTES = 1 << 20


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that a step computed or found: `what` it belongs to, the tensor's or module's `name`, the operation, a digest.

    `draws`: the operation draws random numbers.
    """

    what: What
    name: str
    op: str
    sha256: str
    draws: bool = False


def read_events(path: Path) -> list[Event]:
    """Read the record of a step. Raises IotwinError if it is none, and FileNotFoundError."""
    return [decode_foreign(line, Event, path) for line in read_foreign_lines(path, _MOST_LINE_BYTES)]


def first_differing_event(step: int, reference: list[Event], found: list[Event]) -> StepDifference | None:
    """Return what differs first in the records of one step, None if no value differs.

    An operation of one run alone counts only if it draws random numbers: a resumed run may, for example, make a constant again.
    """
    expected_keys, found_keys = ([(event.what, event.name, event.op) for event in events] for events in (reference, found))
    blocks = SequenceMatcher(None, expected_keys, found_keys, autojunk=False).get_matching_blocks()
    begin, begin_found = 0, 0
    pairs: list[tuple[Event, Event | None]] = []
    for block in blocks:
        alone = [*reference[begin : block.a], *found[begin_found : block.b]]
        pairs += [(event, None) for event in alone if event.draws or not event.op][:1]
        begin, begin_found = block.a + block.size, block.b + block.size
        pairs += zip(reference[block.a : begin], found[block.b : begin_found], strict=True)
    differing = [expected for expected, actual in pairs if actual is None or expected.sha256 != actual.sha256]
    if not differing:
        return None
    first = differing[0]
    # An operation without a name changes a tensor that gets its name later, such as a gradient that is accumulated.
    name = first.name or next((event.name for event in differing if event.what == first.what and event.name), "")
    # Equal generators draw equal numbers.
    return StepDifference(step, "rng" if first.draws else first.what, name, first.op)
