"""Where a resumed run first differs from the uninterrupted one."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from iotwin.workloads.detrain.court.update_log import Update


class Difference(msgspec.Struct, frozen=True):
    """The first difference. `step`: index from 0 of the update, None if it is in a file at the end.

    `what`: samples, order, inputs, loss, weights, optimizer, rng, steps or bytes. `name`: of the weight, generator or file.
    `also`: whatever else differs at the same step. `expected` and `found`: the uninterrupted run's value and the resumed run's.
    """

    step: int | None
    what: str
    name: str | None = None
    also: list[str] = []
    expected: Any = None
    found: Any = None


def resumed_at(reference: Sequence[Update], resumed: Sequence[Update], killed_after: int) -> int:
    """Return the index, from 0, of the update that the resumed run did first; the number of all updates if it did none.

    This is where the uninterrupted run had the same weights before an update. If it never had them, or had them at several
    updates, the number of updates that the resumed run did decides: those that were left.
    """
    left = max(0, len(reference) - len(resumed))
    if not resumed:
        return len(reference)
    same = [index for index, before in enumerate(_weights_before(reference)) if before == resumed[0].before]
    if not same or left in same:
        return left
    return max((index for index in same if index <= killed_after), default=same[0])


def _weights_before(updates: Sequence[Update]) -> list[str | None]:
    """Return, for each update, the digest of the weights of its optimizer before it."""
    latest: dict[int, str | None] = {}
    found = []
    for update in updates:
        found.append(latest.get(update.optimizer, update.before))
        latest[update.optimizer] = update.after
    return found


def first_difference(reference: Sequence[Update], resumed: Sequence[Update], at: int) -> Difference | None:
    """Compare the updates of the resumed run with those of the uninterrupted one from index `at` on. Returns None if equal."""
    if resumed and at < len(reference) and _weights_before(reference)[at] != resumed[0].before:
        return Difference(at, "weights", "before the first update")
    for index, found in enumerate(resumed[: len(reference) - at]):
        expected = reference[at + index]
        if expected != found and (difference := _at_step(reference[at + index :], resumed[index:], at + index)):
            return difference
    if len(resumed) != len(reference) - at:
        return Difference(min(len(reference), at + len(resumed)), "steps", None, [], len(reference), at + len(resumed))
    return None


def _at_step(reference: Sequence[Update], resumed: Sequence[Update], step: int) -> Difference | None:
    """Return the difference of the first updates of both, None if only generators differ that are not used later."""
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
