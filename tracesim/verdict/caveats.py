"""Caveats that weaken a verdict: a crowded machine, reads through memory maps, reruns that differ too much.

All commands that print a verdict or a ratio of times take their caveats from here.
"""

from iotwin.trace_store.figures.mapped import mapped_data_note
from iotwin.trace_store.reader import Trace

LEAST_FLOOR = 0.90  # overall score: reruns of one job on a quiet machine score more
_LEAST_IDLE = 0.1  # share of the CPUs; with less idle, work waits for a CPU
_LEAST_OTHER = 0.25  # share of the CPUs that other work takes; with less, the job itself fills the machine


def caveats_of(trace: Trace, name: str) -> list[str]:
    """Return a sentence for each caveat of this trace, which the sentences call `name`."""
    found = []
    if others := _others_cpus(trace):
        cpus = trace.manifest.host.cpus
        found.append(f"{name}'s machine was crowded (other work took {others:.1f} of {cpus} CPUs), which its times show")
    if unseen := mapped_data_note(trace):
        found.append(f"what {name} reads of mapped data is unknown to the verdict: {unseen}")
    return found


def caveats_of_floor(floor: float | None, job: str = "A") -> list[str]:
    """Return a sentence if the noise floor of the reruns is too low to base a verdict on it."""
    if floor is None or floor >= LEAST_FLOOR:
        return []
    return [
        f"repeats of {job} score {floor:.2f} against one another, below {LEAST_FLOOR:.2f}: the verdict proves little and does "
        "not use this noise floor; are they runs of one job, on a quiet machine?"
    ]


def _others_cpus(trace: Trace) -> float:
    """Return the CPUs that other work took, if the machine is crowded; 0 if it is not, or if that is unknown."""
    samples = trace.samples("cpu")
    cpus = trace.manifest.host.cpus
    if samples is None or samples.empty or samples["job_cpus"].isna().all():
        return 0.0
    idle = float((samples["idle"] + samples["iowait"]).mean())
    others = float(((samples["user"] + samples["system"]) * cpus - samples["job_cpus"]).mean())
    return others if idle < _LEAST_IDLE and others >= _LEAST_OTHER * cpus else 0.0
