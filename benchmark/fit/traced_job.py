"""Loads from a trace, in one pass and as frames, all inputs of fit."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import compute as pc

from iotwin.trace_store import schema
from iotwin.trace_store.logs.job_log import read_values
from iotwin.trace_store.reader import Trace

_KINDS = ("dataset", "checkpoint", "pipe", "socket")  # kinds of files whose calls are read for all processes
_ROLES = ("rank", "loader")  # roles of processes whose calls are all read
_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "file_id", "offset", "requested", "result", "flags")
_MAPPED = 0.5  # data are mapped if page faults read more than this share of the bytes


@dataclass(frozen=True)
class Job:
    """What a trace shows of a job. All stages of fit share the frames, and none writes into them."""

    trace: Trace
    files: pd.DataFrame  # as Trace.files
    processes: pd.DataFrame  # as Trace.processes
    phases: pd.DataFrame  # as Trace.phases
    logged: dict[str, Any]  # other values in the job's log: read_values
    # All calls of ranks and loaders, and the calls of other processes on data set, checkpoints, pipes and sockets, in order of
    # start: start_ns, end_ns, duration_ns, op, pid, tid, file_id (-1: none), offset (NaN: none), requested, result, flags
    # (FLAG_*).
    calls: pd.DataFrame

    def file_ids(self, *kinds: str) -> list[int]:
        """Return the ids of the files of these kinds, ascending."""
        ids: list[int] = self.files.loc[self.files["kind"].isin(kinds), "file_id"].tolist()
        return ids

    def calls_on(self, file_ids: Collection[int], ops: Sequence[str]) -> pd.DataFrame:
        """Return the calls of `ops` on these files."""
        chosen: pd.DataFrame = self.calls[self._are_on(file_ids, ops)]
        return chosen

    def _are_on(self, file_ids: Collection[int], ops: Sequence[str]) -> NDArray[np.bool_]:
        """Return the mask of the calls of `ops` on these files."""
        wanted = np.zeros(len(self.files) + 1, np.bool_)  # the last one stands for no file
        wanted[list(file_ids)] = True
        mask: NDArray[np.bool_] = wanted[self.calls["file_id"].to_numpy()] & self.calls["op"].isin(ops).to_numpy()
        return mask

    def is_mapped(self) -> bool:
        """Return True if page faults read most of the bytes that are read from the data set."""
        data, result = self.file_ids("dataset"), self.calls["result"].to_numpy()
        faults = int(result[self._are_on(data, ["page_fault"])].sum())
        return faults > _MAPPED * int(result[self._are_on(data, schema.READ_OPS) & (result > 0)].sum())

    def roles(self) -> dict[int, str]:
        """Return the role of each process by pid."""
        return dict(zip(self.processes["pid"], self.processes["role"].astype(str), strict=True))


def look(trace: Trace) -> Job:
    """Return what the trace shows of its job."""
    files, processes = trace.files(), trace.processes()
    ids = files.loc[files["kind"].isin(_KINDS), "file_id"].tolist()
    pids = processes.loc[processes["role"].isin(_ROLES), "pid"].tolist()
    calls = trace.events_frame(_COLUMNS, pc.field("file_id").isin(ids) | pc.field("pid").isin(pids))
    calls["file_id"] = calls["file_id"].fillna(-1).astype(np.int64)
    calls.insert(1, "end_ns", calls["start_ns"] + calls["duration_ns"])
    _end_with_the_file(calls, files)
    logs = trace.path / "logs"
    logged = read_values(sorted(logs.iterdir())) if logs.is_dir() else {}
    return Job(trace, files, processes, trace.phases(), logged, calls)


def _end_with_the_file(calls: pd.DataFrame, files: pd.DataFrame) -> None:
    """Limit the bytes of page faults to the file's size. The last page extends beyond the file's end, where no call reads."""
    faults = calls.index[(calls["op"] == "page_fault") & (calls["file_id"] >= 0)]
    sizes = files["size_bytes"].to_numpy(np.float64)[calls.loc[faults, "file_id"].to_numpy(np.int64)]
    left = sizes - calls.loc[faults, "offset"].to_numpy(np.float64)
    within = left > 0  # False for NaN, if the file's size was not seen
    calls.loc[faults[within], "result"] = np.minimum(calls.loc[faults[within], "result"], left[within].astype(np.int64))
