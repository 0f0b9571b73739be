"""How much of what a job read, wrote and opened its structured twin accounts for, and where the two contradict one another."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.deliveries import deliveries
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.plan import Plan, plan
from iotwin.benchmark.fit.streams.stream import logged_steps
from iotwin.benchmark.fit.twin_parts import Fitted
from iotwin.common.errors import IotwinError
from iotwin.common.units import format_size
from iotwin.trace_store import schema

_DIRECTIONS = {"read": schema.READ_OPS, "write": schema.WRITE_OPS, "open": schema.OPEN_OPS}
KINDS = {"dataset": "data", "checkpoint": "checkpoints", "other": "other files"}
_VERBS = {"read": "read", "write": "written", "open": "opened"}
_LEAST = 0.5  # a structured twin that accounts for a smaller share of the bytes read or written is refused
# Below these shares of the bytes read, of those written (one checkpoint more is the same job) or of the data's reads or opens,
# a recorded twin is made unless a structured one is asked for.
_NEAR, _NEAR_WRITTEN, _ALIKE = 0.9, 0.7, 0.8
_BESIDE = 0.5  # it is read by threads if those beside the main ones read more than this share of the bytes
_AGAIN = 1.5  # a process goes through its data again if it reads this many times their bytes
_APART = 2.0  # hand-overs and steps that differ by this factor contradict one another
_LEAST_AGREE, _ENOUGH = 0.25, 8  # of so many batches this share must have the twin's batch size


@dataclass(frozen=True)
class Flow:
    """What the job, and what its twin does in one direction to one kind of file."""

    direction: str  # read | write | open
    kind: str
    calls: int
    size_bytes: int  # 0 of opens
    twin: float  # bytes; of opens calls

    @property
    def seen(self) -> int:
        """What `twin` is held against."""
        return self.calls if self.direction == "open" else self.size_bytes


@dataclass(frozen=True)
class Coverage:
    """What the twin accounts for: shares of bytes (of opens: of calls), 0..1. What it has too much counts against it."""

    flows: tuple[Flow, ...]
    reasons: tuple[str, ...]  # contradictions, and what is not seen at all
    reads: tuple[int, float] | None = None  # calls on data: the job's and the twin's, where these are known
    mapped: bool = False  # most of what is read of the data comes by page faults, of which one may bring many pages, or none
    untold: bool = False  # the data is streamed by a job that logs no steps, which its reads do not show
    beside: float = 0.0  # share of the bytes read of the data that threads read which the twin lacks

    @property
    def read_share(self) -> float:
        """Share of the bytes read."""
        return self._share("read")

    @property
    def write_share(self) -> float:
        """Share of the bytes written."""
        return self._share("write")

    @property
    def open_share(self) -> float:
        """Share of the opens."""
        return self._share("open")

    @property
    def suffices(self) -> bool:
        """Whether a structured twin is worth running; small files that a job writes besides its checkpoints do not count."""
        return not self.reasons and min(self.read_share, self._share("write", ("checkpoint",))) >= _LEAST

    @property
    def short_of(self) -> str | None:
        """Why a recorded twin is nearer to the job than this one; None where it is not."""
        if self.mapped:
            return "the data are mapped, and at which places pages fault is more than the structured one tells"
        if self.untold:
            return "the data are streamed, which hides the steps, and the job logs none"
        if self.beside > _BESIDE:
            return (
                f"threads beside the main ones read {self.beside:.0%} of the data, which no thread of the structured one would do"
            )
        read, written = self._share("read", ("dataset", "checkpoint")), self._share("write", ("checkpoint",))
        if read < _NEAR or written < _NEAR_WRITTEN:
            return describe_coverage(self.document())
        if self._share("open", ("dataset",)) < _ALIKE:
            return describe_coverage(self.document())
        if self.reads is not None and min(self.reads) < _ALIKE * max(self.reads):
            return f"the structured one would make {self.reads[1]:.0f} reads of the data, the job makes {self.reads[0]}"
        return None

    def _share(self, direction: str, kinds: Collection[str] = tuple(KINDS)) -> float:
        own = [(flow.seen, flow.twin) for flow in self.flows if flow.direction == direction and flow.kind in kinds]
        whole = max(sum(seen for seen, _ in own), sum(twin for _, twin in own))
        return sum(map(min, own)) / whole if whole else 1.0

    def document(self) -> dict[str, Any]:
        """Return the shares, what they rest on by direction and kind, and the reasons, as JSON."""
        shares = {name: round(getattr(self, name), 4) for name in ("read_share", "write_share", "open_share")}
        flows = [
            {"direction": flow.direction, "kind": flow.kind, "calls": flow.calls, "seen": flow.seen, "twin": round(flow.twin)}
            for flow in self.flows
        ]
        return {**shares, "flows": flows, "reasons": list(self.reasons)}


def account(job: Job, fitted: Fitted) -> Coverage:
    """Return what the twin accounts for of the calls of ranks and loaders, and of everybody's on data and checkpoints."""
    planned = plan(fitted)
    flows = flows_of(job.calls[job.calls["result"] >= 0], job.files["kind"].astype(str).to_numpy(), planned.bytes_or_opens)
    made = job.calls_on([*job.file_ids("dataset"), *_started_from(job, fitted)], schema.READ_OPS)
    reads = None if planned.data_reads is None else (int((made["result"] > 0).sum()), planned.data_reads)
    untold = fitted.config.twin.reader.streamed and logged_steps(job) is None
    beside = 0.0 if fitted.config.twin.reader.streamed else _read_beside(job)
    return Coverage(tuple(flows), tuple(_reasons(job, fitted, planned)), reads, job.is_mapped(), untold, beside)


def _read_beside(job: Job) -> float:
    """Share of the bytes read of the data that threads beside their process's main one read.

    Recordings of other tools number threads in their own ways: where no call shows a process's main thread, none is beside it.
    """
    reads = job.calls_on(job.file_ids("dataset"), schema.READ_OPS)
    size = reads["result"].clip(lower=0)
    told = reads["pid"].isin(job.calls.loc[job.calls["pid"] == job.calls["tid"], "pid"].unique())
    return float(size[told & (reads["tid"] != reads["pid"])].sum() / max(size.sum(), 1))


def _started_from(job: Job, fitted: Fitted) -> list[int]:
    """Files of other kinds that the job starts from."""
    paths = {str(PurePosixPath(fitted.config.dataset.data_folder) / name) for name, _ in fitted.start_up.files}
    other = job.files[job.files["path"].isin(paths) & (job.files["kind"] != "dataset")]
    return [int(file) for file in other["file_id"]]


def flows_of(calls: pd.DataFrame, kinds: NDArray[Any], twin: Mapping[tuple[str, str], float]) -> Iterator[Flow]:
    """Yield what `calls` (op, file_id, result: those that did not fail) move, beside what the `twin` does; `kinds` by file_id."""
    of_call = np.append(kinds, "")[calls["file_id"].to_numpy(np.int64)]
    for direction, ops in _DIRECTIONS.items():
        moves = calls["op"].isin(ops).to_numpy()
        for kind in KINDS:
            own = calls.loc[moves & (of_call == kind), "result"]
            amount = twin.get((direction, kind), 0.0)
            if len(own) or amount:
                yield Flow(direction, kind, len(own), 0 if direction == "open" else int(own.sum()), amount)


def check_coverage(job: Job, fitted: Fitted) -> Coverage:
    """Put the coverage into `fitted` and return it; IotwinError where it is below half or contradicts the trace."""
    coverage = account(job, fitted)
    fitted.coverage = coverage.document()
    if coverage.suffices:
        return coverage
    advice = (
        ["log epochs and evaluations (docs/trace.md), which tells passes apart"] if not len(job.phases) and _trains(job) else []
    )
    why = "; ".join([*coverage.reasons, *advice])
    raise IotwinError(f"{job.path}: no structured twin: {describe_coverage(fitted.coverage)}{'; ' + why if why else ''}")


def _trains(job: Job) -> bool:
    """Whether a job that logs nothing looks like training: loaders hand over batches, or who saves goes through data again."""
    if len(deliveries(job)):
        return True
    savers = job.calls_on(job.file_ids("checkpoint"), schema.WRITE_OPS)["pid"].unique()
    reads = job.calls_on(job.file_ids("dataset"), schema.READ_OPS)
    read_bytes = (
        reads[reads["pid"].isin(savers) & (reads["result"] > 0)].groupby(["pid", "file_id"], as_index=False)["result"].sum()
    )
    whole = read_bytes["file_id"].map(job.files.set_index("file_id")["size_bytes"].fillna(0))
    return bool((read_bytes["result"].groupby(read_bytes["pid"]).sum() > _AGAIN * whole.groupby(read_bytes["pid"]).sum()).any())


def describe_coverage(document: dict[str, Any]) -> str:
    """Return a coverage (as of `Coverage.document`) in a line."""
    said = []
    for direction, verb in _VERBS.items():
        flows = [flow for flow in document["flows"] if flow["direction"] == direction and (flow["seen"] or flow["twin"])]
        amounts = [f"{_amounts(flow)} {KINDS[flow['kind']]}" for flow in flows]
        if flows:
            said.append(f"{document[f'{direction}_share']:.0%} of what is {verb} ({', '.join(amounts)})")
    return "the twin accounts for " + ("; ".join(said) or "nothing: nothing is read or written")


def _amounts(flow: dict[str, Any]) -> str:
    """The twin's part of what the job moved; what it would move beyond that is no part."""
    twin, seen = (str(flow[name]) if flow["direction"] == "open" else format_size(flow[name]) for name in ("twin", "seen"))
    return f"{twin} {'instead of' if flow['twin'] > flow['seen'] and twin != seen else 'of'} {seen}"


def _reasons(job: Job, fitted: Fitted, planned: Plan) -> Iterator[str]:
    handed = len(deliveries(job))
    if handed and planned.steps and max(handed / planned.steps, planned.steps / handed) > _APART:
        yield f"{handed} batches were handed over by loaders, but the twin would make {planned.steps} steps"
    written = job.calls_on(job.file_ids("checkpoint"), schema.WRITE_OPS)
    if len(written) and not planned.checkpoints:
        yield "checkpoints were written, but the twin would end before its first one"
    batch = fitted.confidence.get("reader.batch_size", {})
    if batch.get("observations", 0) >= _ENOUGH and batch["agree"] < _LEAST_AGREE:
        yield f"only {batch['agree']:.0%} of {batch['observations']} batches have the {batch['value']} samples of the twin's"
    mapped = _mapped_unseen(job)
    mapped_bytes = int(job.files.loc[job.files["file_id"].isin(mapped), "size_bytes"].fillna(0).sum())
    read_bytes = int(job.calls_on(job.file_ids("dataset"), schema.READ_OPS)["result"].clip(lower=0).sum())
    if mapped_bytes > (1 - _NEAR) * (read_bytes + mapped_bytes):
        yield f"{len(mapped)} data files are mapped, and what is read of them was not traced: trace with --detail data,mmap"


def _mapped_unseen(job: Job) -> list[int]:
    """Data files that are mapped and of which neither reads nor page faults were seen."""
    ids = job.file_ids("dataset")
    mapped = job.calls_on(ids, schema.MAP_OPS)["file_id"].unique()
    return [int(file) for file in np.setdiff1d(mapped, job.calls_on(ids, schema.READ_OPS)["file_id"].unique())]
