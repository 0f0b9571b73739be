"""What a trace shows of a job's training: the batches of each pass, the calls on its files, and how busy processors were."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.benchmark.fit.fitted import Fitted
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import READ_OPS, WRITE_OPS
from iotwin.workload_yaml.recorded_structure import RecordedStructure, pass_bounds, structure_of
from iotwin.workload_yaml.recording import RecordedBatches, TwinRecording

_Ints = NDArray[np.int64]
HARDLY = 0.05  # ranks that wait for a smaller share of their time have another limit; two runs differ by as much
OF_CALL_NS = 20_000  # a program in Python spends 1 to 20 us on making a call
_CALL_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "file_id", "offset", "requested", "result", "flags")


@dataclass(frozen=True)
class PassTimes:
    """One pass of a rank over its batches; times in ns on the trace's clock, one for each batch."""

    process: int  # index in the recording
    training: bool
    loader: _Ints  # process that read the batch
    requested: _Ints
    received: _Ints
    delivered: _Ints
    taken: _Ints
    computed: _Ints

    @property
    def waits(self) -> _Ints:
        """Return begin and end of the rank's wait for the delivery of each batch but the first, shape (batches - 1, 2)."""
        begin = self.computed[:-1]
        there = np.minimum(np.maximum.accumulate(self.delivered)[1:], self.taken[1:])
        return np.stack([begin, np.maximum(there, begin)], axis=1)

    @property
    def counted_ns(self) -> int:
        """Return the time from the end of the first step to the end of the last."""
        return int(self.computed[-1] - self.computed[0])

    @property
    def duration_ns(self) -> int:
        """Return the time from the first request to the end of the last step."""
        return int(self.computed[-1] - self.requested[0])


class TrainingView:
    """The training that a fit found in `trace`: the fit's recording, and the batches of this recording."""

    def __init__(self, trace: Trace, recording: TwinRecording, batches: RecordedBatches) -> None:
        self.trace, self.recording, self.batches = trace, recording, batches
        self.structure: RecordedStructure = structure_of(batches)
        self.passes = _passes(batches, trace.manifest.start_ns)
        self.training = [each for each in self.passes if each.training]
        self.begin_ns = int(min(each.requested[0] for each in self.training))
        self.end_ns = int(max(each.computed[-1] for each in self.training))
        self.files = trace.files()

    @cached_property
    def waits(self) -> _Ints:
        """Return begin and end of all waits for batches in training, shape (waits, 2)."""
        return np.concatenate([each.waits for each in self.training])

    @cached_property
    def waiting_share(self) -> float:
        """Return the share (0 to 1) of the ranks' time after the first step of each pass that is spent in waits for data."""
        counted = sum(each.counted_ns for each in self.training)
        return float(np.diff(self.waits, axis=1).sum() / counted) if counted else 0.0

    @cached_property
    def step_s(self) -> float:
        """Return the duration of the training passes by their steps, in seconds."""
        return sum(each.duration_ns for each in self.training) / sum(len(each.taken) for each in self.training) / 1e9

    @cached_property
    def service_s(self) -> float:
        """Return the mean time in seconds from a loader's receipt of a request to the delivery of the batch."""
        return float(np.mean(np.concatenate([each.delivered - each.received for each in self.training]))) / 1e9

    @cached_property
    def computation_s(self) -> float:
        """Return the mean computation time of a training step, in seconds."""
        return float(np.mean(np.concatenate([each.computed - each.taken for each in self.training]))) / 1e9

    @cached_property
    def busy_share(self) -> float:
        """Return the share (0 to 1) of the loaders' time, from first request to last delivery, in which they had a request."""
        busy = whole = 0
        for each in self.training:
            for loader in np.unique(each.loader):
                own = each.loader == loader
                begin, end = each.received[own], each.delivered[own]
                busy += int((end - np.maximum(begin, np.append(begin[0], np.maximum.accumulate(end)[:-1]))).clip(0).sum())
                whole += int(end.max() - begin.min())
        return busy / whole if whole else 0.0

    def kind_ids(self, kind: str) -> list[int]:
        """Return the ids of the files of one kind."""
        ids: list[int] = self.files.loc[self.files["kind"] == kind, "file_id"].tolist()
        return ids

    def calls(self, kind: str) -> pd.DataFrame:
        """Return the calls during training on the files of one kind, with _CALL_COLUMNS."""
        of_files = pc.field("file_id").isin(self.kind_ids(kind))
        within = (pc.field("start_ns") >= self.begin_ns) & (pc.field("start_ns") <= self.end_ns)
        return self.trace.events_frame(_CALL_COLUMNS, of_files & within)

    @cached_property
    def data_calls(self) -> pd.DataFrame:
        """Return the calls on the data set during training."""
        return self.calls("dataset")

    @cached_property
    def gaps_ns(self) -> _Ints:
        """Return the time from each call of `data_calls` to its thread's next one, in ns; 0 for a thread's last call."""
        ordered = self.data_calls.sort_values(["pid", "tid", "start_ns"], kind="stable")
        begin, tid = ordered["start_ns"].to_numpy(), ordered["tid"].to_numpy()
        gaps = np.append(begin[1:], 0) - begin - ordered["duration_ns"].to_numpy()
        gaps = np.where(np.append(tid[1:] == tid[:-1], False)[: len(tid)], gaps, 0).clip(0)
        found: _Ints = pd.Series(gaps, ordered.index).reindex(self.data_calls.index).to_numpy(np.int64)
        return found

    @cached_property
    def call_gaps_ns(self) -> int:
        """Return the sum of those `gaps_ns` that are so short that a program can only make its next call in them."""
        return int(self.gaps_ns[self.gaps_ns < OF_CALL_NS].sum())

    @cached_property
    def tracing_s(self) -> float:
        """Return the most seconds that tracing added to a step: its cost if training waited for each traced call."""
        cost, op = self.trace.manifest.cost, self.data_calls["op"].astype(str)
        transfers = int(op.isin([*READ_OPS, *WRITE_OPS]).sum())
        spent_ns = transfers * (cost.transfer_ns or 0) + (len(op) - transfers) * (cost.call_ns or 0)
        return spent_ns / 1e9 / max(self.structure.loaders, 1) / sum(len(each.taken) for each in self.training)

    @cached_property
    def device_bytes(self) -> int:
        """Return the bytes of the data set that devices read during training.

        If block requests were not traced, all reads of the machine's disks count, from the last sample before training on.
        """
        block = self.trace.block()
        if block is not None:
            own = (block["op"] == "read") & block["file_id"].isin(self.kind_ids("dataset"))
            return int(block.loc[own & block["issue_ns"].between(self.begin_ns, self.end_ns), "size_bytes"].sum())
        samples = self.trace.samples("disk")
        if samples is None:
            return 0
        within = (samples["time_ns"] >= self.begin_ns) & (samples["time_ns"] - samples["interval_ns"] <= self.end_ns)
        return int(samples.loc[within, "read_bytes"].sum())

    @cached_property
    def job_cpus(self) -> float | None:
        """Return how many processors the job used during training, on average; None if that was not sampled."""
        samples = self.trace.samples("cpu")
        if samples is None:
            return None
        used = samples.loc[samples["time_ns"].between(self.begin_ns, self.end_ns), "job_cpus"].dropna()
        return float(used.mean()) if len(used) else None


def training_view(trace: Trace, fitted: Fitted) -> TrainingView | None:
    """Return the view of a job's training; None if the trace does not show when ranks took their batches."""
    recording = fitted.recording
    if recording is None or recording.header.batches is None:
        return None
    return TrainingView(trace, recording, recording.header.batches)


def _passes(batches: RecordedBatches, start_ns: int) -> list[PassTimes]:
    bounds = pass_bounds(batches)
    names = ("requested_ns", "received_ns", "delivered_ns", "taken_ns", "computed_ns")
    times = [np.array(getattr(batches, name), np.int64) + start_ns for name in names]
    loader = np.array(batches.loader, np.int64)
    return [
        PassTimes(one.process, one.training, loader[a:b], *(column[a:b] for column in times))
        for one, a, b in zip(batches.passes, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
