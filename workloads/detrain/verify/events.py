"""The events of a recorded step, and the first one that differs between two runs."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import msgspec

from iotwin.common.untrusted_files import decode_foreign, read_foreign_lines
from iotwin.workloads.detrain.verify.compared_steps import StepDifference, What

_MOST_LINE_BYTES = 1 << 20


class StepEvent(msgspec.Struct, frozen=True, array_like=True):
    """A value that a step computed or found: its kind (`what`), the tensor's or module's `name`, the operation, its digest.

    `draws`: the operation draws random numbers.
    """

    what: What
    name: str
    op: str
    sha256: str
    draws: bool = False


def read_events(path: Path) -> list[StepEvent]:
    """Read the record of a step. Raises FileNotFoundError if the file is missing, and IotwinError if it is no such record."""
    return [decode_foreign(line, StepEvent, path) for line in read_foreign_lines(path, _MOST_LINE_BYTES)]


def first_differing_event(step: int, reference: list[StepEvent], found: list[StepEvent]) -> StepDifference | None:
    """Return what differs first in the records of one step, None if no value differs.

    An operation that only one run did is a difference in three cases:

    * it changes a tensor with a name,
    * the next value differs, or
    * it draws random numbers, and the generators differ after the step.

    Otherwise it is ignored, since a resumed run may create a constant again.
    """
    generators = [{event.name: event.sha256 for event in events if event.what == "rng"} for events in (reference, found)]
    differing = list(_differing(reference, found, draws_count=generators[0] != generators[1]))
    if not differing:
        return None
    first = differing[0]
    # An operation without a name changes a tensor that gets its name later, such as a gradient that is accumulated.
    name = first.name or next((event.name for event in differing if event.what == first.what and event.name), "")
    # Equal generators draw equal numbers.
    return StepDifference(step, "rng" if first.draws else first.what, name, first.op)


def _differing(reference: list[StepEvent], found: list[StepEvent], draws_count: bool) -> Iterator[StepEvent]:
    """Yield the events that the other run lacks, or has with another value."""
    expected_keys, found_keys = ([(event.what, event.name, event.op) for event in events] for events in (reference, found))
    blocks = SequenceMatcher(None, expected_keys, found_keys, autojunk=False).get_matching_blocks()
    begin, begin_found = 0, 0
    for block in blocks:
        alone = [*reference[begin : block.a], *found[begin_found : block.b]]
        yield from (event for event in alone if (draws_count if event.draws else _changes_state(event)))
        begin, begin_found = block.a + block.size, block.b + block.size
        for expected, actual in zip(reference[block.a : begin], found[block.b : begin_found], strict=True):
            if expected.sha256 != actual.sha256:
                yield from (event for event in alone if event.what == expected.what)  # the operation that caused it
                yield expected
            alone = []


def _changes_state(event: StepEvent) -> bool:
    return not event.op or (event.name != "" and event.what != "loss")
