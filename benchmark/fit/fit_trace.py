"""Fits the twin of a traced job: a short workload YAML and a recording of the job's calls, which the emulator replays and edits.

fit needs only the traced calls. If the job logged the passes of a pipeline, its twin has stages instead of a recording. The YAML
lists under `twin.assumptions` what the trace does not show.
"""

from dataclasses import replace

from iotwin.benchmark.fit.batches.labels import label_calls
from iotwin.benchmark.fit.coverage import describe_coverage
from iotwin.benchmark.fit.fitted import Fitted, failure
from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.benchmark.fit.parameters.pipeline_stages import logs_passes
from iotwin.benchmark.fit.recorded.twin import fit_recorded
from iotwin.benchmark.fit.traced_job import look
from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.trace_store.figures.unrecorded_maps import mapped_data_note
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml.recording import LABELS


def fit(trace: Trace) -> Fitted:
    """Return the twin of the traced job. Its evidence includes the labels of the job's calls.

    Raises IotwinError if the job made no call on storage.
    """
    if failed := failure(trace.manifest):
        note(f"{trace.path}: {failed}; what follows is of what it did until then")
    if unseen := mapped_data_note(trace):
        note(f"{trace.path}: {unseen}")
    return quiet_fit(trace)


def predict_twin(trace: Trace) -> str:
    """Return in words how much of the job's I/O its twin would account for, and which values of the twin could be edited."""
    try:
        fitted = quiet_fit(trace)
    except IotwinError as error:
        return f"none: {str(error).removeprefix(f'{trace.path}: ')}"
    covered = describe_coverage(fitted.coverage) if fitted.coverage else fitted.evidence["pipeline"]
    return f"{covered}; edits: {fitted.evidence['edits']}"


def quiet_fit(trace: Trace) -> Fitted:
    """Return what `fit` returns, without notes on what the trace lacks."""
    if logs_passes(trace.step_parts()):
        try:
            fitted = fit_parameters(trace)
        except IotwinError as error:
            note(f"{error}; the twin is a recording of the ranks that read")
        else:
            if fitted.config.twin.pipeline is not None:
                return fitted
    job = look(trace)
    labelled = label_calls(job)
    job = replace(job, calls=job.calls.iloc[:0].copy())  # a recording reads its calls itself, and those of a job take much memory
    unused = ["duration_ns", "requested", "flags"]
    labelled = labelled._replace(calls=labelled.calls.drop(columns=unused).astype(LABELS))
    return fit_recorded(job, labelled)
