"""Describes how trace B differs from trace A: sentences with numbers for each dimension, the largest difference first."""

import re
from collections.abc import Callable, Iterator

import numpy as np

from iotwin.common.units import format_duration, format_size
from iotwin.tracesim.calls import FILE_KINDS, GROUPS, MAP, OPEN, READ, SYNC, WRITE
from iotwin.tracesim.dimensions import checkpoint_bytes, removed_share, wait_share
from iotwin.tracesim.logbins import quantile
from iotwin.tracesim.phases import CHECKPOINT, EVALUATION, PHASES, RUN, TIMED, TRAINING
from iotwin.tracesim.profile import Summary

# Smaller differences get no sentence, since reruns of one job differ by as much.
_LEAST_FACTOR = 1.1  # least ratio of two amounts or times
_LEAST_BINS_FACTOR = 1.4  # least ratio of two medians of histograms, each of which is exact to a factor of 1.19
_LEAST_SHARE = 0.1  # least difference of two shares
_LEAST_CALLS = 0.02  # least difference of two shares of calls; small, because rare operations matter
_LEAST_ORDER = 0.3  # least difference of two order statistics (order.py: 0 sorted, 1 random)
_TIMES_FROM = 1.5  # ratios from here on are written as "2.1 times more", smaller ones as "14 % more"
_WHERE = ("start-up", "training", "evaluation", "checkpoints", "the whole run")  # words for each of PHASES
_CALLS = (READ, WRITE, OPEN, SYNC, MAP)  # closes are left out, because files are closed as often as they are opened
_VERBS = {READ: "reads", WRITE: "writes"}


def differences(name: str, a: Summary, b: Summary) -> tuple[str, ...]:
    """Return sentences about the differences in dimension `name`, the weightiest first; empty if all are small."""
    sentences = sorted(_SENTENCES[name](a, b), key=lambda entry: -entry[0])
    return tuple(sentence for _, sentence in sentences)


def with_names(text: str, a: str, b: str) -> str:
    """Return `text` with the trace names A and B replaced, for example by "the job" and "the twin"."""
    for letter, name in (("A", a), ("B", b)):
        text = re.sub(rf"\b{letter}\b", name, text)
    return text


Weighted = Iterator[tuple[float, str]]  # size of the difference, sentence


def _factor(a: float, b: float) -> float:
    """Return the larger amount divided by the smaller: 1 if both are zero, infinite if only one is."""
    larger, smaller = max(a, b), min(a, b)
    return 1.0 if larger <= 0 else np.inf if smaller <= 0 else larger / smaller


def _times(a: float, b: float, fewer: str = "fewer", more: str = "more") -> str:
    """Return for example "2.1 times fewer", or "14 % more" if the factor is below _TIMES_FROM."""
    factor, word = _factor(a, b), more if b > a else fewer
    if factor >= _TIMES_FROM:
        return f"{factor:.0f} times {word}" if factor >= 100 else f"{factor:.3g} times {word}"
    return f"{abs(b / a - 1) * 100:.0f} % {word}"


def _volume(a: Summary, b: Summary) -> Weighted:
    for phase, where in enumerate(_WHERE):
        for group in _CALLS:
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


def _operation_mix(a: Summary, b: Summary) -> Weighted:
    calls_a, calls_b = a.calls.sum(axis=(0, 1)), b.calls.sum(axis=(0, 1))
    for group, name in enumerate(GROUPS):
        share_a, share_b = _share(calls_a, float(calls_a[group])), _share(calls_b, float(calls_b[group]))
        if abs(share_a - share_b) >= _LEAST_CALLS:
            yield abs(share_a - share_b), f"{share_b * 100:.0f} % of B's calls are {name} calls, {share_a * 100:.0f} % of A's"


def _request_size(a: Summary, b: Summary) -> Weighted:
    for group, verb in ((READ, "read"), (WRITE, "written")):
        size_a, size_b = quantile(a.size_bytes[:, group].sum(axis=0), 0.5), quantile(b.size_bytes[:, group].sum(axis=0), 0.5)
        if size_a and size_b and _factor(size_a, size_b) > 1.0:
            sizes = f"about {format_size(size_b)} or less, half of A's in calls of {format_size(size_a)} or less"
            yield _factor(size_a, size_b), f"half of B's bytes are {verb} in calls of {sizes}"


_SCATTER = (
    "B goes through its files {more} randomly than A in {where} "
    "(scatter {b:.2f} against {a:.2f}; 0 is in order of name, 1 random)"
)
_DRIFT = (
    "B changes the order of files {more} than A from one {phase} to the next "
    "({b:.2f} against {a:.2f}; 0 is the same order, 1 a fresh shuffle)"
)
_JUMPS = (
    "B goes through the parts of its large files {more} randomly than A in {where} "
    "({b:.2f} against {a:.2f}; 0 is in order, 1 random)"
)


def _access_order(a: Summary, b: Summary) -> Weighted:
    for phase in (TRAINING, EVALUATION, RUN):
        for of_a, of_b, sentence in (
            (a.scatter[phase], b.scatter[phase], _SCATTER),
            (a.drift[phase], b.drift[phase], _DRIFT),
            (a.jumps[phase], b.jumps[phase], _JUMPS),
        ):
            if abs(of_a - of_b) >= _LEAST_ORDER:
                more = "more" if of_b > of_a else "less"
                named = {"phase": PHASES[phase], "where": _WHERE[phase]}
                yield abs(of_a - of_b), sentence.format(more=more, b=of_b, a=of_a, **named)
    sequential = [_share(s.step_bytes, float(s.step_bytes[:, :2].sum())) for s in (a, b)]
    if abs(sequential[0] - sequential[1]) >= _LEAST_SHARE:
        of_b, of_a = f"{sequential[1] * 100:.0f} % of B's", f"{sequential[0] * 100:.0f} % of A's"
        yield 1.0, f"{of_b} bytes are moved sequentially within files, {of_a}"


def _timing(a: Summary, b: Summary) -> Weighted:
    total = max(a.duration_ns.sum(), b.duration_ns.sum())
    for phase in (TRAINING, EVALUATION, CHECKPOINT, RUN):
        times = float(a.duration_ns[phase]), float(b.duration_ns[phase])
        if min(times) > 0 and _factor(*times) >= _LEAST_FACTOR:
            long = f"{_times(*times, 'less')} time in {_WHERE[phase]}"
            yield (
                abs(times[1] - times[0]) / total,
                f"B spends {long} ({format_duration(times[1])} against {format_duration(times[0])})",
            )


def _bursts(a: Summary, b: Summary) -> Weighted:
    timed = list(TIMED)
    bursts = quantile(a.burst_bytes[timed].sum(axis=0), 0.5), quantile(b.burst_bytes[timed].sum(axis=0), 0.5)
    if bursts[0] and bursts[1] and _factor(bursts[0], bursts[1]) >= _LEAST_BINS_FACTOR:
        yield 0.01, f"a thread of B reads about {format_size(bursts[1])} between pauses, of A {format_size(bursts[0])}"


def _steps(a: Summary, b: Summary) -> Weighted:
    for phase in (TRAINING, EVALUATION, RUN):
        steps = quantile(a.step_ns[phase], 0.5), quantile(b.step_ns[phase], 0.5)
        if steps[0] and steps[1] and _factor(steps[0], steps[1]) >= _LEAST_BINS_FACTOR:
            times = f"{format_duration(steps[1])} against {format_duration(steps[0])}"
            yield 1.0, f"a step of B in {_WHERE[phase]} takes {_times(steps[0], steps[1], 'less', 'more')} time ({times})"
        waits = [wait_share(s, phase) for s in (a, b)]
        if abs(waits[1] - waits[0]) >= _LEAST_SHARE:
            yield 0.5, f"B waits for data {waits[1] * 100:.0f} % of the time in {_WHERE[phase]}, A {waits[0] * 100:.0f} %"


def _block(a: Summary, b: Summary) -> Weighted:
    for direction, verb in enumerate(("read from", "written to")):
        moved = float(a.block_bytes[:, direction].sum()), float(b.block_bytes[:, direction].sum())
        if _factor(*moved) >= _LEAST_FACTOR:
            yield _factor(*moved), f"{format_size(moved[1])} are {verb} the device in B, {format_size(moved[0])} in A"


def _concurrency(a: Summary, b: Summary) -> Weighted:
    for phase in (TRAINING, EVALUATION, RUN):
        readers = float(a.readers[phase]), float(b.readers[phase])
        if min(readers) > 0 and _factor(*readers) >= _LEAST_FACTOR:
            each = "the whole run" if phase == RUN else f"each {PHASES[phase]}"
            yield _factor(*readers), f"{readers[1]:.3g} processes or threads of B read in {each}, {readers[0]:.3g} of A"


def _files(a: Summary, b: Summary) -> Weighted:
    for kind, name in enumerate(FILE_KINDS):
        count = float(a.file_sizes[kind].sum()), float(b.file_sizes[kind].sum())
        if _factor(*count) >= _LEAST_FACTOR:
            yield _factor(*count), f"B uses {count[1]:.0f} {name} files, A {count[0]:.0f}"


def _checkpoint(a: Summary, b: Summary) -> Weighted:
    if _factor(a.written_files, b.written_files) >= _LEAST_FACTOR:
        yield (
            _factor(a.written_files, b.written_files),
            f"B writes {b.written_files:.0f} checkpoint files, A {a.written_files:.0f}",
        )
    size = checkpoint_bytes(a), checkpoint_bytes(b)
    if min(size) > 0 and _factor(*size) >= _LEAST_FACTOR:
        sizes = f"({format_size(size[1])} against {format_size(size[0])})"
        yield _factor(*size), f"B's checkpoint files are {_times(*size, 'smaller', 'larger')} {sizes}"
    if min(a.saves_at_once, b.saves_at_once) > 0 and _factor(a.saves_at_once, b.saves_at_once) >= _LEAST_FACTOR:
        at_once = f"{b.saves_at_once:.2g} checkpoint files at once, A {a.saves_at_once:.2g}"
        yield _factor(a.saves_at_once, b.saves_at_once), f"B writes {at_once}"
    removed = removed_share(a), removed_share(b)
    if abs(removed[0] - removed[1]) >= _LEAST_SHARE:
        yield 1.0, f"B removes {removed[1]:.0%} of the checkpoint files that it writes, A {removed[0]:.0%}"


_SENTENCES: dict[str, Callable[[Summary, Summary], Weighted]] = {
    "volume": _volume, "operation_mix": _operation_mix, "request_size": _request_size, "access_order": _access_order,
    "timing": _timing, "bursts": _bursts, "steps": _steps, "concurrency": _concurrency,
    "timeline": lambda a, b: iter(()), "files": _files, "checkpoint": _checkpoint, "block": _block,
}  # fmt: skip
