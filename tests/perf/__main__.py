"""``make perf``: every measurement, as the table that docs/performance.md keeps. Exit status 1 when a bound is not met."""

import sys
import time

from tests.perf import (
    perf_backends,
    perf_capture,
    perf_datagen,
    perf_demo,
    perf_emulator,
    perf_fitted,
    perf_held_out,
    perf_identification,
    perf_newcomer,
    perf_probes,
    perf_reading,
    perf_samplers,
    perf_tracesim,
    perf_twin,
    perf_unseen,
    perf_visuals,
    perf_workloads,
)
from tests.perf.figures import machine
from tracing_tools.trace.progress import set_quiet


def main() -> int:
    """Measure everything and print the table."""
    set_quiet(True)
    print(f"{machine()}, {time.strftime('%Y-%m-%d')}\n")
    print("| figure | asked | measured | met | detail |\n|---|---|---|---|---|", flush=True)
    missed = 0
    for module in (
        perf_capture,
        perf_backends,
        perf_probes,
        perf_demo,
        perf_newcomer,
        perf_twin,
        perf_fitted,
        perf_unseen,
        perf_held_out,
        perf_identification,
        perf_datagen,
        perf_emulator,
        perf_reading,
        perf_samplers,
        perf_tracesim,
        perf_visuals,
        perf_workloads,
    ):
        for figure in module.measure():
            print(figure.line(), flush=True)
            missed += not figure.met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
