"""Fits the twin of a traced job: a workload YAML, with a recording if need be, that the emulator runs.

fit needs only the traced calls; phases that the job logged make the result more exact. The YAML lists under `twin.assumptions`
what the trace does not show.
"""

from typing import Literal

import pandas as pd

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
from iotwin.trace_store.figures.unrecorded_maps import mapped_data_note
from iotwin.trace_store.reader import Trace

Kind = Literal["auto", "structured", "recorded"]
KINDS: tuple[Kind, ...] = ("auto", "structured", "recorded")


def fit(trace: Trace, kind: Kind = "auto") -> Fitted:
    """Return the twin of the traced job, and as evidence the labels of its calls.

    `auto`: structured if that accounts for the job, else recorded. Raises IotwinError with the reason if there is nothing to
    replay, or if `kind` is `structured` and the job's structure is inconclusive.
    """
    if failed := failure(trace.manifest):
        note(f"{trace.path}: {failed}; what follows is of what it did until then")
    if unseen := mapped_data_note(trace):
        note(f"{trace.path}: {unseen}")
    job = look(trace)
    labelled = label_calls(job)
    fitted = _fit(trace, job, labelled, kind)
    fitted.evidence["labels"] = describe_labels(job, labelled)
    return fitted


def _fit(trace: Trace, job: Job, labelled: pd.DataFrame, kind: Kind) -> Fitted:
    if kind == "recorded":
        return _with_kind(fit_recorded(trace, job, labelled), "recorded, as asked")
    try:
        fitted, coverage = fit_structured(job)
    except IotwinError as error:
        if kind == "structured":
            raise
        reason = str(error).removeprefix(f"{trace.path}: ")
        return _with_kind(fit_recorded(trace, job, labelled), f"recorded, as no structure can be told: {reason}")
    if kind == "auto" and (short_of := coverage.short_of):
        return _with_kind(
            fit_recorded(trace, job, labelled), f"recorded, as that is nearer (--kind structured can be edited): {short_of}"
        )
    return _with_kind(fitted, "structured: samples, batches and epochs can be edited")


def predict_twin(trace: Trace) -> str:
    """Return in words which kind of twin `fit` makes of the trace, and how much it accounts for or why it cannot be edited."""
    try:
        fitted, coverage = fit_structured(look(trace))
    except IotwinError as error:
        return f"recorded, as no structure can be told: {str(error).removeprefix(f'{trace.path}: ')}"
    if short_of := coverage.short_of:
        return f"recorded, as that is nearer: {short_of}"
    return f"structured: {describe_coverage(fitted.coverage)}"


def fit_structured(job: Job) -> tuple[Fitted, Coverage]:
    """Return the structured twin, and its coverage: how much of the job it accounts for.

    Raises IotwinError with the reason if the trace shows no training, or if the twin would account for less than half of the job.
    """
    fitted = structured(job)
    return fitted, check_coverage(job, fitted)


def structured(job: Job) -> Fitted:
    """Return the structured twin of the job, however little it accounts for."""
    stream = find_stream(job)
    return fit_samples(job) if stream is None else fit_stream(job, stream)


def _with_kind(fitted: Fitted, kind: str) -> Fitted:
    fitted.evidence = {"kind": kind, **fitted.evidence}
    return fitted
