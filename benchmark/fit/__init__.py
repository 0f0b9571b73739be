"""From a trace to its twin: what the job did to storage, found in the events, as a workload YAML that the emulator runs.

Phases that the job logged sharpen the answer but are not needed for training itself. What the trace cannot tell, the YAML lists
under ``twin.assumptions``.
"""

from typing import Literal

from iotwin.benchmark.fit.batches.labels import describe_labels, label_calls
from iotwin.benchmark.fit.coverage import Coverage, check_coverage, describe_coverage
from iotwin.benchmark.fit.look import Job, look
from iotwin.benchmark.fit.recorded.twin import fit_recorded
from iotwin.benchmark.fit.sample_twin import fit_samples
from iotwin.benchmark.fit.streams.stream import find_stream
from iotwin.benchmark.fit.streams.stream_twin import fit_stream
from iotwin.benchmark.fit.twin_parts import Fitted, failure
from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.trace_store.figures.mapped import mapped_data_note
from iotwin.trace_store.reader import Trace

Kind = Literal["auto", "structured", "recorded"]
KINDS: tuple[Kind, ...] = ("auto", "structured", "recorded")


def fit(trace: Trace, kind: Kind = "auto") -> Fitted:
    """Return the twin of the traced job: structured where that accounts for the job, else recorded, unless `kind` says.

    Raises IotwinError, saying why, when a structured twin is wanted and cannot be had, and when there is nothing to replay.
    """
    if failed := failure(trace.manifest):
        note(f"{trace.path}: {failed}; what follows is of what it did until then")
    if unseen := mapped_data_note(trace):
        note(f"{trace.path}: {unseen}")
    job = look(trace)
    fitted = _fit(trace, job, kind)
    fitted.evidence["labels"] = describe_labels(job, label_calls(job))
    return fitted


def _fit(trace: Trace, job: Job, kind: Kind) -> Fitted:
    if kind == "recorded":
        return _with_kind(fit_recorded(trace), "recorded, as asked")
    try:
        fitted, coverage = fit_structured(job)
    except IotwinError as error:
        if kind == "structured":
            raise
        reason = str(error).removeprefix(f"{trace.path}: ")
        return _with_kind(fit_recorded(trace), f"recorded, as no structure can be told: {reason}")
    if kind == "auto" and (short_of := coverage.short_of):
        return _with_kind(fit_recorded(trace), f"recorded, as that is nearer (--kind structured can be edited): {short_of}")
    return _with_kind(fitted, "structured: samples, batches and epochs can be edited")


def foretell(trace: Trace) -> str:
    """Return in words which twin `fit` makes of the trace, and what it accounts for or why it is none that can be edited."""
    try:
        fitted, coverage = fit_structured(look(trace))
    except IotwinError as error:
        return f"recorded, as no structure can be told: {str(error).removeprefix(f'{trace.path}: ')}"
    if short_of := coverage.short_of:
        return f"recorded, as that is nearer: {short_of}"
    return f"structured: {describe_coverage(fitted.coverage)}"


def fit_structured(job: Job) -> tuple[Fitted, Coverage]:
    """Return the structured twin; IotwinError, saying why, when the trace shows no training that can be emulated.

    Its coverage says how much of the job it accounts for; a twin of less than half is refused.
    """
    fitted = structured(job)
    return fitted, check_coverage(job, fitted)


def structured(job: Job) -> Fitted:
    """Return the structured twin of the job, whatever it accounts for."""
    stream = find_stream(job)
    return fit_samples(job) if stream is None else fit_stream(job, stream)


def _with_kind(fitted: Fitted, kind: str) -> Fitted:
    fitted.evidence = {"kind": kind, **fitted.evidence}
    return fitted
