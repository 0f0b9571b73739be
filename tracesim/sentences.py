"""Where two traces differ, in sentences with numbers: what B does against what A does, the largest difference first."""

import re
from collections.abc import Callable, Iterator

import numpy as np

from common.units import format_duration, format_size
from tracesim.calls import FILE_KINDS, GROUPS, MAP, OPEN, READ, SYNC, WRITE
from tracesim.dimensions import checkpoint_bytes, removed_share, wait_share
from tracesim.logbins import quantile
from tracesim.phases import CHECKPOINT, EVALUATION, PHASES, RUN, TIMED, TRAINING
from tracesim.profile import Summary

_LEAST_FACTOR = 1.1  # below it, a difference is not worth a sentence
_LEAST_REMOVED = 0.1  # difference in the share of checkpoint files that are removed, likewise
_LEAST_ORDER = 0.3  # difference in the order of files that is worth one
_WHERE = ("start-up", "training", "evaluation", "checkpoints", "the whole run")  # one for each of PHASES
_CALLS_TOLD = (READ, WRITE, OPEN, SYNC, MAP)  # as many files are closed as opened
_VERBS = {READ: "reads", WRITE: "writes"}


def differences(name: str, a: Summary, b: Summary) -> tuple[str, ...]:
    """Return what dimension `name` has to say, the weightiest difference first; empty when nothing differs by a tenth or more."""
    sentences = sorted(_TELLERS[name](a, b), key=lambda entry: -entry[0])
    return tuple(sentence for _, sentence in sentences)


def with_names(text: str, a: str, b: str) -> str:
    """Return sentences about traces A and B with these names instead, such as "the job" and "its twin"."""
    for letter, name in (("A", a), ("B", b)):
        text = re.sub(rf"\b{letter}\b", name, text)
    return text


Told = Iterator[tuple[float, str]]  # how far apart, sentence


def _factor(a: float, b: float) -> float:
    """The larger over the smaller, 1 if both are zero, infinite if one is."""
    larger, smaller = max(a, b), min(a, b)
    return 1.0 if larger <= 0 else np.inf if smaller <= 0 else larger / smaller


def _times(a: float, b: float, fewer: str = "fewer", more: str = "more") -> str:
    """Return for example: 2.1 times fewer; or below a factor of 1.5: 14 % more."""
    factor, word = _factor(a, b), more if b > a else fewer
    if factor >= 1.5:
        return f"{factor:.0f} times {word}" if factor >= 100 else f"{factor:.3g} times {word}"
    return f"{abs(b / a - 1) * 100:.0f} % {word}"


def _volume(a: Summary, b: Summary) -> Told:
    for phase, where in enumerate(_WHERE):
        for group in _CALLS_TOLD:
            moved = float(a.bytes[phase, :, group].sum()), float(b.bytes[phase, :, group].sum())
            calls = float(a.calls[phase, :, group].sum()), float(b.calls[phase, :, group].sum())
            parts = ((a.bytes, moved[0]), (b.bytes, moved[1]), (a.calls, calls[0]), (b.calls, calls[1]))
            weight = max(_share(every, part) for every, part in parts) ** 0.5
            if group in _VERBS and _factor(*moved) >= _LEAST_FACTOR:
                yield _weight(weight, *moved), f"B {_VERBS[group]} {_amount(*moved, 'bytes', where, format_size)}"
            elif _factor(*calls) >= _LEAST_FACTOR:
                yield _weight(weight, *calls), f"B makes {_amount(*calls, f'{GROUPS[group]} calls', where, '{:.0f}'.format)}"


def _share(every: np.ndarray[tuple[int, ...], np.dtype[np.float64]], part: float) -> float:
    total = float(every.sum())
    return part / total if total > 0 else 0.0


def _weight(weight: float, a: float, b: float) -> float:
    return weight * (1.0 - min(a, b) / max(a, b))


def _amount(a: float, b: float, what: str, where: str, written: Callable[[float], str]) -> str:
    if a > 0 and b > 0:
        return f"{_times(a, b)} {what} in {where}"
    how_many, other = ("no", written(a)) if a > 0 else ("some", "none")
    return f"{how_many} {what} in {where} ({f'B: {written(b)}, ' if b > 0 else ''}A: {other})"


def _operation_mix(a: Summary, b: Summary) -> Told:
    calls_a, calls_b = a.calls.sum(axis=(0, 1)), b.calls.sum(axis=(0, 1))
    for group, name in enumerate(GROUPS):
        share_a, share_b = _share(calls_a, float(calls_a[group])), _share(calls_b, float(calls_b[group]))
        if abs(share_a - share_b) >= 0.02:
            yield abs(share_a - share_b), f"{share_b * 100:.0f} % of B's calls are {name} calls, {share_a * 100:.0f} % of A's"


def _request_size(a: Summary, b: Summary) -> Told:
    for group, verb in ((READ, "read"), (WRITE, "written")):
        size_a, size_b = quantile(a.size_bytes[:, group].sum(axis=0), 0.5), quantile(b.size_bytes[:, group].sum(axis=0), 0.5)
        if size_a and size_b and _factor(size_a, size_b) > 1.0:
            sizes = f"about {format_size(size_b)} or less, half of A's in calls of {format_size(size_a)} or less"
            yield _factor(size_a, size_b), f"half of B's bytes are {verb} in calls of {sizes}"


def _access_order(a: Summary, b: Summary) -> Told:
    for phase in (TRAINING, EVALUATION, RUN):
        apart = abs(a.scatter[phase] - b.scatter[phase])
        if apart >= _LEAST_ORDER:
            more = "more" if b.scatter[phase] > a.scatter[phase] else "less"
            of = f"(scatter {b.scatter[phase]:.2f} against {a.scatter[phase]:.2f}; 0 is in order of name, 1 random)"
            yield apart, f"B goes through its files {more} randomly than A in {_WHERE[phase]} {of}"
        apart = abs(a.drift[phase] - b.drift[phase])
        if apart >= _LEAST_ORDER:
            more = "more" if b.drift[phase] > a.drift[phase] else "less"
            of = f"({b.drift[phase]:.2f} against {a.drift[phase]:.2f}; 0 is the same order, 1 a fresh shuffle)"
            yield apart, f"B changes the order of files {more} than A from one {PHASES[phase]} to the next {of}"
        apart = abs(a.jumps[phase] - b.jumps[phase])
        if apart >= _LEAST_ORDER:
            more = "more" if b.jumps[phase] > a.jumps[phase] else "less"
            of = f"({b.jumps[phase]:.2f} against {a.jumps[phase]:.2f}; 0 is in order, 1 random)"
            yield apart, f"B goes through the parts of its large files {more} randomly than A in {_WHERE[phase]} {of}"
    sequential = [_share(s.step_bytes, float(s.step_bytes[:, :2].sum())) for s in (a, b)]
    if abs(sequential[0] - sequential[1]) >= 0.1:
        of_b, of_a = f"{sequential[1] * 100:.0f} % of B's", f"{sequential[0] * 100:.0f} % of A's"
        yield 1.0, f"{of_b} bytes are moved sequentially within files, {of_a}"


def _timing(a: Summary, b: Summary) -> Told:
    total = max(a.duration_ns.sum(), b.duration_ns.sum())
    for phase in (TRAINING, EVALUATION, CHECKPOINT, RUN):
        times = float(a.duration_ns[phase]), float(b.duration_ns[phase])
        if min(times) > 0 and _factor(*times) >= _LEAST_FACTOR:
            long = f"{_times(*times, 'less')} time in {_WHERE[phase]}"
            yield (
                abs(times[1] - times[0]) / total,
                f"B spends {long} ({format_duration(times[1])} against {format_duration(times[0])})",
            )


def _bursts(a: Summary, b: Summary) -> Told:
    timed = list(TIMED)
    bursts = quantile(a.burst_bytes[timed].sum(axis=0), 0.5), quantile(b.burst_bytes[timed].sum(axis=0), 0.5)
    if bursts[0] and bursts[1] and _factor(bursts[0], bursts[1]) >= 1.4:
        yield 0.01, f"a thread of B reads about {format_size(bursts[1])} between pauses, of A {format_size(bursts[0])}"


def _steps(a: Summary, b: Summary) -> Told:
    for phase in (TRAINING, EVALUATION, RUN):
        steps = quantile(a.step_ns[phase], 0.5), quantile(b.step_ns[phase], 0.5)
        if steps[0] and steps[1] and _factor(steps[0], steps[1]) >= 1.4:
            times = f"{format_duration(steps[1])} against {format_duration(steps[0])}"
            yield 1.0, f"a step of B in {_WHERE[phase]} takes {_times(steps[0], steps[1], 'less', 'more')} time ({times})"
        waits = [100 * wait_share(s, phase) for s in (a, b)]
        if abs(waits[1] - waits[0]) >= 10:
            yield 0.5, f"B waits for data {waits[1]:.0f} % of the time in {_WHERE[phase]}, A {waits[0]:.0f} %"


def _block(a: Summary, b: Summary) -> Told:
    for direction, verb in enumerate(("read from", "written to")):
        moved = float(a.block_bytes[:, direction].sum()), float(b.block_bytes[:, direction].sum())
        if _factor(*moved) >= _LEAST_FACTOR:
            yield _factor(*moved), f"{format_size(moved[1])} are {verb} the device in B, {format_size(moved[0])} in A"


def _nothing(a: Summary, b: Summary) -> Told:
    """What the dimension tells is told by the others."""
    yield from ()


def _concurrency(a: Summary, b: Summary) -> Told:
    for phase in (TRAINING, EVALUATION, RUN):
        readers = float(a.readers[phase]), float(b.readers[phase])
        if min(readers) > 0 and _factor(*readers) >= _LEAST_FACTOR:
            each = "the whole run" if phase == RUN else f"each {PHASES[phase]}"
            yield _factor(*readers), f"{readers[1]:.3g} processes or threads of B read in {each}, {readers[0]:.3g} of A"


def _files(a: Summary, b: Summary) -> Told:
    for kind, name in enumerate(FILE_KINDS):
        count = float(a.file_sizes[kind].sum()), float(b.file_sizes[kind].sum())
        if _factor(*count) >= _LEAST_FACTOR:
            yield _factor(*count), f"B uses {count[1]:.0f} {name} files, A {count[0]:.0f}"


def _checkpoint(a: Summary, b: Summary) -> Told:
    if _factor(a.written_files, b.written_files) >= _LEAST_FACTOR:
        yield 10.0, f"B writes {b.written_files:.0f} checkpoint files, A {a.written_files:.0f}"
    size = checkpoint_bytes(a), checkpoint_bytes(b)
    if min(size) > 0 and _factor(*size) >= _LEAST_FACTOR:
        sizes = f"({format_size(size[1])} against {format_size(size[0])})"
        yield _factor(*size), f"B's checkpoint files are {_times(*size, 'smaller', 'larger')} {sizes}"
    if min(a.saves_at_once, b.saves_at_once) > 0 and _factor(a.saves_at_once, b.saves_at_once) >= _LEAST_FACTOR:
        at_once = f"{b.saves_at_once:.2g} checkpoint files at once, A {a.saves_at_once:.2g}"
        yield _factor(a.saves_at_once, b.saves_at_once), f"B writes {at_once}"
    removed = removed_share(a), removed_share(b)
    if abs(removed[0] - removed[1]) >= _LEAST_REMOVED:
        yield 1.0, f"B removes {removed[1]:.0%} of the checkpoint files that it writes, A {removed[0]:.0%}"


_TELLERS: dict[str, Callable[[Summary, Summary], Told]] = {
    "volume": _volume, "operation_mix": _operation_mix, "request_size": _request_size, "access_order": _access_order,
    "timing": _timing, "bursts": _bursts, "steps": _steps, "concurrency": _concurrency, "timeline": _nothing, "files": _files,
    "checkpoint": _checkpoint, "block": _block,
}  # fmt: skip
