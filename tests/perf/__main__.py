"""Measure subjects, record their figures in tests/perf/records and write docs/performance.md.

    python -m tests.perf [NAME ... | all | page]

`page` writes the page alone. Without a name, print what is out of date and measure nothing (`make perf`).
Exit status 1 if a figure misses its bound.
"""

import sys
from importlib import import_module

from iotwin.common.progress import set_quiet
from tests.perf.figures import HEADING, machine
from tests.perf.page import print_outdated, write_page
from tests.perf.records import record_figures
from tests.perf.subjects import SUBJECTS


def main(names: list[str]) -> int:
    """Measure what is named."""
    if names == ["page"]:
        write_page()
        return 0
    if names == ["all"]:
        names = list(SUBJECTS)
    if unknown := [name for name in names if name not in SUBJECTS]:
        print(f"tests.perf: no subject is called {unknown[0]}; known: {', '.join(SUBJECTS)}", file=sys.stderr)
        return 2
    if not names:
        print_outdated()
        return 0
    set_quiet(True)
    print(f"{machine()}\n\n{HEADING}", flush=True)
    missed = sum(record_figures(name, import_module(f"tests.perf.perf_{name}").measure()) for name in names)
    write_page()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
