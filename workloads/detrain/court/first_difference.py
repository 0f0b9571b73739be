"""Finds the first update of weights at which a resumed run differs from the uninterrupted run."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from iotwin.workloads.detrain.court.update_log import Update

_CAUSES = ("samples", "order", "inputs", "loss", "weights", "optimizer", "rng", "steps")


class Difference(msgspec.Struct, frozen=True):
    """The first difference of two runs. `step`: index from 0 of the update, None if only a file at the end of the run differs.

    * `what` differs: samples, order, inputs, loss, weights, optimizer, rng, steps or bytes
    * `name`: the weight, generator or file that differs
    * `also`: further kinds, as in `what`, that differ at the same step
    * `expected` and `found`: the value of the uninterrupted run and that of the resumed run
    * `rank`: the process that differs
    """

    step: int | None
    what: str
    name: str | None = None
    also: list[str] = []
    expected: Any = None
    found: Any = None
    rank: int = 0


def resumed_at(reference: Sequence[Update], resumed: Sequence[Update], killed_after: int) -> int:
    """Return the index, from 0, of the first update of the `resumed` run among the updates of the uninterrupted run, `reference`.

    It is the update before which `reference` had the weights that `resumed` started with. If no update fits, or several do, the
    resumed run is assumed to have done all remaining updates. Returns the number of all updates if `resumed` is empty.
    """
    left = max(0, len(reference) - len(resumed))
    if not resumed:
        return len(reference)
    same = [index for index, before in enumerate(_weights_before(reference)) if before == resumed[0].before]
    if not same or left in same:
        return left
    return max((index for index in same if index <= killed_after), default=same[0])


def _weights_before(updates: Sequence[Update]) -> list[str | None]:
    """Return, for each update, the digest of its optimizer's weights before the update."""
    latest: dict[int, str | None] = {}
    found = []
    for update in updates:
        found.append(latest.get(update.optimizer, update.before))
        latest[update.optimizer] = update.after
    return found


def first_difference(reference: Sequence[Update], resumed: Sequence[Update], at: int) -> Difference | None:
    """Return the first difference of the `resumed` updates from `reference`, from its index `at` on; None if all are equal."""
    if resumed and at < len(reference) and _weights_before(reference)[at] != resumed[0].before:
        return Difference(at, "weights", "before the first update")
    for index, found in enumerate(resumed[: len(reference) - at]):
        expected = reference[at + index]
        if expected != found and (difference := _at_step(reference[at + index :], resumed[index:], at + index)):
            return difference
    if len(resumed) != len(reference) - at:
        return Difference(min(len(reference), at + len(resumed)), "steps", None, [], len(reference), at + len(resumed))
    return None


def first_difference_of_ranks(
    reference: Sequence[Sequence[Update]], resumed: Sequence[Sequence[Update]], at: int
) -> Difference | None:
    """Return the first difference of any rank. If several differ at the same step, the cause precedes what it changes."""
    pairs = enumerate(zip(reference, resumed, strict=True))
    found = [(rank, first_difference(expected, updates, at)) for rank, (expected, updates) in pairs]
    differences = [msgspec.structs.replace(difference, rank=rank) for rank, difference in found if difference is not None]
    return min(differences, key=lambda each: (each.step, _CAUSES.index(each.what)), default=None)


def _at_step(reference: Sequence[Update], resumed: Sequence[Update], step: int) -> Difference | None:
    """Return the difference of the first updates; None if only generators differ that no later update uses."""
    expected, found = reference[0], resumed[0]
    differences: list[Difference] = []
    if expected.indices != found.indices:
        what = "order" if _taken(reference) == _taken(resumed) else "samples"
        differences.append(Difference(step, what, None, [], expected.indices, found.indices))
    elif expected.rows != found.rows:
        is_known = expected.indices is not None
        what = "inputs" if is_known else "order" if _fed(reference) == _fed(resumed) else "samples"
        differences.append(Difference(step, what))
    if expected.losses != found.losses:
        differences.append(Difference(step, "loss", None, [], expected.losses, found.losses))
    if name := _first_key(expected.weights, found.weights):
        differences.append(Difference(step, "weights", name))
    if expected.state != found.state:
        differences.append(Difference(step, "optimizer"))
    used = {name: state for name, state in expected.rng.items() if any(each.rng.get(name) != state for each in reference[1:])}
    if name := _first_key(used, {name: found.rng.get(name) for name in used}):
        differences.append(Difference(step, "rng", name))
    if not differences:
        return None
    also = [f"{each.what} ({each.name})" if each.name else each.what for each in differences[1:]]
    return msgspec.structs.replace(differences[0], also=also)


def _first_key(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    return next((name for name in (*expected, *found) if expected.get(name) != found.get(name)), None)


def _taken(updates: Sequence[Update]) -> Counter[str]:
    return Counter(str(index) for update in updates for batch in update.indices or [] for index in _flat(batch))


def _fed(updates: Sequence[Update]) -> Counter[str]:
    return Counter(row for update in updates for row in update.rows)


def _flat(value: Any) -> list[Any]:
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]
