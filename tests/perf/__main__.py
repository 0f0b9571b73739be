"""``make perf``: every measurement, as the table that docs/performance.md keeps. Exit status 1 when a bound is not met.

    python -m tests.perf [NAME ...]

With names (`backends` for perf_backends) only those.
"""

import sys
import time

from common.progress import set_quiet
from tests.perf import (
    perf_backends,
    perf_capture,
    perf_checkfreq,
    perf_checkfreq_crash,
    perf_checkfreq_hogs,
    perf_checkfreq_overhead,
    perf_checkfreq_recovery,
    perf_checkfreq_twins,
    perf_checkpoints,
    perf_datagen,
    perf_demo,
    perf_dlio,
    perf_dtr,
    perf_earlier,
    perf_emulator,
    perf_faults,
    perf_fitted,
    perf_fuzz,
    perf_held_out,
    perf_identification,
    perf_mutations,
    perf_newcomer,
    perf_page_faults,
    perf_pipedream,
    perf_probes,
    perf_reading,
    perf_respond,
    perf_resume,
    perf_rivals,
    perf_samplers,
    perf_tracesim,
    perf_twin,
    perf_unseen,
    perf_verdict,
    perf_visuals,
    perf_workloads,
)
from tests.perf.figures import machine

_MODULES = {
    module.__name__.rpartition("perf_")[2]: module
    for module in (
        perf_capture, perf_earlier, perf_faults, perf_backends, perf_probes, perf_demo, perf_newcomer, perf_twin, perf_fitted,
        perf_unseen, perf_respond, perf_rivals,
        perf_held_out, perf_identification, perf_datagen, perf_emulator, perf_dlio, perf_reading, perf_samplers, perf_tracesim,
        perf_verdict, perf_page_faults, perf_visuals, perf_workloads, perf_fuzz, perf_mutations, perf_pipedream, perf_dtr,
        perf_checkpoints, perf_resume, perf_checkfreq, perf_checkfreq_overhead, perf_checkfreq_recovery,
        perf_checkfreq_crash, perf_checkfreq_hogs, perf_checkfreq_twins,
    )
}  # fmt: skip


def main(names: list[str]) -> int:
    """Measure everything, or what is named, and print the table."""
    if unknown := [name for name in names if name not in _MODULES]:
        print(f"tests.perf: nothing is called {unknown[0]}; known: {', '.join(_MODULES)}", file=sys.stderr)
        return 2
    set_quiet(True)
    print(f"{machine()}, {time.strftime('%Y-%m-%d')}\n")
    print("| figure | asked | measured | met | detail |\n|---|---|---|---|---|", flush=True)
    missed = 0
    for name in names or _MODULES:
        for figure in _MODULES[name].measure():
            print(figure.line(), flush=True)
            missed += not figure.met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
