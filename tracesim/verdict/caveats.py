"""Caveats that weaken a verdict: a busy machine, reads through memory maps, reruns that differ too much.

All commands that print a verdict or a ratio of times print these caveats.
"""

from iotwin.trace_store.figures.unrecorded_maps import mapped_data_note
from iotwin.trace_store.reader import Trace

LEAST_FLOOR = 0.90  # least overall score of two reruns of a job on a quiet machine
_LEAST_IDLE = 0.1  # a machine is crowded if the idle share of its CPUs is smaller than this ...
_LEAST_OTHER = 0.25  # ... and if programs other than the job use at least this share


def caveats_of(trace: Trace, name: str) -> list[str]:
    """Return a sentence for each caveat of `trace`; the sentences call the trace `name`."""
    found = []
    if others := others_cpus(trace):
        cpus = trace.manifest.host.cpus
        found.append(f"{name}'s machine was crowded (other work took {others:.1f} of {cpus} CPUs), which its times show")
    if unseen := mapped_data_note(trace):
        found.append(f"what {name} reads of mapped data is unknown to the verdict: {unseen}")
    return found


def caveats_of_floor(floor: float | None, job: str = "A") -> list[str]:
    """Return a list with one sentence if the noise floor is below LEAST_FLOOR; else an empty list."""
    if floor is None or floor >= LEAST_FLOOR:
        return []
    return [
        f"repeats of {job} score {floor:.2f} against one another, below {LEAST_FLOOR:.2f}: the verdict proves little and does "
        "not use this noise floor; are they runs of one job, on a quiet machine?"
    ]


def others_cpus(trace: Trace) -> float:
    """Return how many CPUs other programs used if the machine was crowded; 0 if it was not crowded, or if this is unknown."""
    samples = trace.samples("cpu")
    cpus = trace.manifest.host.cpus
    if samples is None or samples.empty or samples["job_cpus"].isna().all():
        return 0.0
    idle = float((samples["idle"] + samples["iowait"]).mean())
    others = float(((samples["user"] + samples["system"]) * cpus - samples["job_cpus"]).mean())
    return others if idle < _LEAST_IDLE and others >= _LEAST_OTHER * cpus else 0.0
