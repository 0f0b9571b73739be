"""Fuzzing of everything that reads files which others may have made, as figures; see fuzzing.py.

python -m tests.perf.perf_fuzz [NAME [NUMBER]]      one subject only; one of its inputs, with the traceback
"""

import os
import sys
import time
from collections.abc import Iterator

from iotwin.common.progress import set_quiet
from tests.perf.figures import Figure
from tests.perf.fuzzing import Subject, fuzz, one
from tests.perf.records import record_figures

_INPUTS = int(os.environ.get("IOTWIN_FUZZ_INPUTS", "100000"))  # of all subjects together


def subjects() -> list[Subject]:
    """Return all subjects, those of the trace store first."""
    from tests.perf import fuzzing_foreign, fuzzing_newer, fuzzing_store

    return [*fuzzing_store.subjects(), *fuzzing_foreign.subjects(), *fuzzing_newer.subjects()]


def measure() -> Iterator[Figure]:
    """Yield the figures, each as soon as it is known."""
    return figures()


def figures(name: str | None = None) -> Iterator[Figure]:
    """Yield the findings of each subject, or of the one of that name; then the inputs of all."""
    chosen = [subject for subject in subjects() if name in (None, subject.name)]
    total = 0
    for subject in chosen:
        begin = time.monotonic()
        result = fuzz(subject, round(_INPUTS * subject.share / sum(each.share for each in chosen)) + 1)
        total += result.inputs
        rate = result.inputs / (time.monotonic() - begin) * 60
        found = "; ".join(f"input {number}: {kind}: {words}" for kind, (number, words) in result.findings.items())
        detail = f"{result.inputs} inputs, {rate:,.0f} a minute, {result.refused} refused{': ' if found else ''}{found}"
        yield Figure(f"fuzzing {subject.name}: findings", len(result.findings), 0, detail=detail)
    yield Figure("fuzzing: inputs", total, None if name else _INPUTS, False)


def main() -> None:
    """Print the figures alone."""
    set_quiet(True)
    if len(sys.argv) > 2:
        subject = next(subject for subject in subjects() if subject.name == sys.argv[1])
        print(one(subject, int(sys.argv[2])))
        return
    record_figures("fuzz", figures(sys.argv[1] if len(sys.argv) > 1 else None))


if __name__ == "__main__":
    main()
