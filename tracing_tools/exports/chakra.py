"""Export as an MLCommons Chakra execution trace: nodes for calls, block requests, accelerator work and the job's phases.

Format: https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto with its storage operations (pull request 216): a
GlobalMetadata message, then Node messages, each after its length as a varint. Chakra's times are microseconds. Nanoseconds,
process, thread and result, for which Chakra has no field, are attributes.

The parent node of a call is the step or checkpoint in which it began. The parent of a block request is the call during which its
process issued it.
"""

from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.trace_store import chakra as et
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.exports import protobuf as pb
from iotwin.tracing_tools.exports.tracks import pieces

_COLUMNS = ["start_ns", "duration_ns", "op", "pid", "tid", "file_id", "fd", "offset", "requested", "result", "flags"]
_BATCH_ROWS = 1 << 13
_MICROSECOND = 1000
_NONE = np.uint64(0)  # means no node, as ids begin at 1
Ints = NDArray[np.int64]


def write_chakra(trace: Trace, out: BinaryIO) -> int:
    """Write `trace` to `out` and return the number of calls and block requests written.

    Calls for which Chakra has no storage operation are left out: calls on names and metadata, waits and memory maps.
    """
    manifest = trace.manifest
    attributes = [_text_attribute("producer", "iotwin"), _text_attribute("clock", "CLOCK_MONOTONIC")]
    attributes.append(_text_attribute("backend", manifest.backend))
    header = pb.text(1, et.VERSION) + b"".join(pb.text(2, attribute) for attribute in attributes)
    out.write(pb.joined(pb.delimited([pb.constant(header, 1)])))
    phases, gpu, block = trace.phases(), trace.gpu(), trace.block()
    out.write(_phase_nodes(phases))
    first = len(phases) + 1
    written, calls = 0, []
    paths = trace.files()["path"].astype(str).to_numpy(dtype=object)
    parents = _Phases(phases)
    for batch in trace.events(columns=_COLUMNS, where=pc.field("op").isin(list(et.FS_OPS)), batch_rows=_BATCH_ROWS):
        frame = batch.to_pandas()
        ids = np.arange(first + written, first + written + len(frame))
        out.write(_call_nodes(frame, ids, paths, parents))
        written += len(frame)
        if block is not None:
            calls.append(frame[["pid", "start_ns", "duration_ns", "file_id"]])
    if block is not None:
        block = block[block["op"].isin(list(et.BLOCK_OPS))]
        for rows in pieces(len(block), _BATCH_ROWS):
            out.write(
                _block_nodes(block.iloc[rows], first + written + rows.start, _causes(block.iloc[rows], calls, first), paths)
            )
    if gpu is not None:
        begin = first + written + (0 if block is None else len(block))
        for rows in pieces(len(gpu), _BATCH_ROWS):
            out.write(_gpu_nodes(gpu.iloc[rows], begin + rows.start))
    return written + (0 if block is None else len(block))


class _Phases:
    """Finds the step or checkpoint in which a call began. If the trace has phases of several ranks, it finds none."""

    def __init__(self, phases: pd.DataFrame) -> None:
        kinds = phases["phase"].astype(str)
        of_phase = kinds.isin(list(et.PHASE_NODES)) & (phases["rank"].nunique(dropna=True) <= 1)
        chosen = np.flatnonzero(of_phase.to_numpy())
        start = phases["start_ns"].to_numpy(np.int64)[chosen]
        order = np.argsort(start, kind="stable")
        self._start, self._end = start[order], phases["end_ns"].to_numpy(np.int64)[chosen][order]
        self._id = chosen.astype(np.uint64)[order] + np.uint64(1)

    def ids(self, start_ns: Ints) -> NDArray[np.uint64]:
        """Return the node id of the phase in which each of `start_ns` lies, 0 for none; shape (n,)."""
        if not len(self._start):
            return np.zeros(len(start_ns), np.uint64)
        index = np.searchsorted(self._start, start_ns, "right") - 1
        inside = (index >= 0) & (start_ns < self._end[index])
        return np.where(inside, self._id[index], _NONE)


def _causes(block: pd.DataFrame, calls: list[pd.DataFrame], first: int) -> NDArray[np.uint64]:
    """Return, per block request, the node id of the call during which its process issued the request; 0 for none.

    Call and request must be on the same file, or one of the files must be unknown. `calls`: the exported calls; the first of them
    has the node id `first`.
    """
    found = np.zeros(len(block), np.uint64)
    every = pd.concat(calls, ignore_index=True) if calls else pd.DataFrame(columns=["pid", "start_ns", "duration_ns", "file_id"])
    of_pid: dict[int, pd.DataFrame] = dict(iter(every.groupby("pid")))  # type: ignore[arg-type]
    issued = block["issue_ns"].to_numpy(np.int64)
    pids, files = block["pid"].fillna(-1).to_numpy(np.int64), block["file_id"].fillna(-1).to_numpy(np.int64)
    for pid in np.unique(pids).tolist():
        group = of_pid.get(pid)
        if group is None:
            continue
        rows = np.flatnonzero(pids == pid)
        start = group["start_ns"].to_numpy(np.int64)
        index = np.searchsorted(start, issued[rows], "right") - 1
        end = start[index] + group["duration_ns"].to_numpy(np.int64)[index]
        file = group["file_id"].fillna(-1).to_numpy(np.int64)[index]
        fits = (index >= 0) & (issued[rows] <= end) & ((files[rows] < 0) | (file < 0) | (files[rows] == file))
        found[rows] = np.where(fits, group.index.to_numpy(np.uint64)[index] + np.uint64(first), _NONE)
    return found


def _node(ids: Ints, names: list[str], kinds: Ints, start_ns: Ints, duration_ns: Ints, others: list[pb.Part]) -> bytes:
    head = [pb.integers(1, ids), pb.texts(2, names), pb.integers(3, kinds)]
    times = [pb.integers(6, start_ns // _MICROSECOND), pb.integers(7, duration_ns // _MICROSECOND)]
    exact = [_attribute("start_ns", start_ns), _attribute("duration_ns", duration_ns)]
    return pb.joined(pb.delimited([*head, *times, *exact, *others]))


def _attribute(name: str, values: Ints, present: NDArray[np.bool_] | None = None) -> pb.Part:
    return pb.messages(10, [pb.constant(pb.text(1, name), len(values)), pb.integers(9, values)], present)


def _numbers(frame: pd.DataFrame, names: dict[str, str]) -> list[pb.Part]:
    return [
        _attribute(name, frame[column].fillna(0).to_numpy(np.int64), frame[column].notna().to_numpy())
        for name, column in names.items()
    ]


def _text_attribute(name: str, value: str) -> bytes:
    return pb.text(1, name) + pb.text(29, value)


def _strings(name: str, values: list[str], present: NDArray[np.bool_] | None = None) -> pb.Part:
    return pb.messages(10, [pb.constant(pb.text(1, name), len(values)), pb.texts(29, values)], present)


def _phase_nodes(phases: pd.DataFrame) -> bytes:
    if not len(phases):
        return b""
    names = phases["phase"].astype(str).tolist()
    start = phases["start_ns"].to_numpy(np.int64)
    kinds = np.array([et.PHASE_NODES.get(name, et.METADATA_NODE) for name in names])
    columns = _numbers(phases, {"rank": "rank", "epoch": "epoch", "step": "step"})
    duration = phases["end_ns"].to_numpy(np.int64) - start
    return _node(np.arange(1, len(phases) + 1), names, kinds, start, duration, columns)


def _call_nodes(frame: pd.DataFrame, ids: Ints, paths: NDArray[np.object_], parents: _Phases) -> bytes:
    if not len(frame):
        return b""
    ops, start = frame["op"].astype(str).tolist(), frame["start_ns"].to_numpy(np.int64)
    known = frame["file_id"].notna().to_numpy()
    file_paths = [str(path) for path in paths[frame["file_id"].fillna(0).to_numpy(np.int64)]] if len(paths) else [""] * len(ops)
    detail = [
        pb.integers(1, np.array([et.FS_OPS[op] for op in ops])),
        pb.texts(2, file_paths, known),
        pb.integers(3, frame["fd"].to_numpy(np.int64)),
        *(
            pb.integers(number, frame[name].fillna(0).to_numpy(np.int64), frame[name].notna().to_numpy())
            for number, name in ((4, "offset"), (5, "requested"))
        ),
        pb.integers(6, et.open_flags(frame["flags"].to_numpy(np.int64))),
    ]
    parent = parents.ids(start)
    storage = pb.messages(11, [pb.integers(1, np.full(len(ops), et.LEVEL_FS)), pb.messages(10, detail)])
    others = [
        pb.integers(4, parent, parent != _NONE),
        *_numbers(frame, {"pid": "pid", "tid": "tid", "result": "result"}),
        storage,
    ]
    kinds = np.full(len(ops), et.STORAGE_NODE)
    return _node(ids, ops, kinds, start, frame["duration_ns"].to_numpy(np.int64), others)


def _block_nodes(block: pd.DataFrame, first: int, causes: NDArray[np.uint64], paths: NDArray[np.object_]) -> bytes:
    ops = block["op"].astype(str).tolist()
    device = block["device"].to_numpy(np.int64)
    # Decodes device numbers as os.major and os.minor do.
    names = [f"{number >> 8 & 0xFFF}:{number & 0xFF | number >> 12 & 0xFFF00}" for number in device.tolist()]
    detail = [
        pb.integers(1, np.array([et.BLOCK_OPS[op] for op in ops])),
        pb.integers(2, np.full(len(ops), et.EVENT_DISPATCH)),
        pb.texts(3, names),
        pb.integers(4, block["sector"].to_numpy(np.int64)),
        pb.integers(5, block["size_bytes"].to_numpy(np.int64) // et.SECTOR_BYTES),
        pb.integers(6, et.request_flags(block["flags"].to_numpy(np.int64))),
    ]
    storage = pb.messages(11, [pb.integers(1, np.full(len(ops), et.LEVEL_BLOCK)), pb.messages(12, detail)])
    file_known = block["file_id"].notna().to_numpy()
    file_paths = [str(path) for path in paths[block["file_id"].fillna(0).to_numpy(np.int64)]] if len(paths) else [""] * len(ops)
    others = [
        pb.integers(4, causes, causes != _NONE),
        *_numbers(block, {"pid": "pid", "queued_ns": "queued_ns", "cgroup": "cgroup", "size_bytes": "size_bytes"}),
        _strings("origin", block["origin"].astype(str).tolist()),
        _strings("comm", block["comm"].fillna("").astype(str).tolist(), block["comm"].notna().to_numpy()),
        _strings("path", file_paths, file_known),
        _attribute("unfinished", np.ones(len(ops), np.int64), block["duration_ns"].isna().to_numpy()),
        storage,
    ]
    kinds = np.full(len(ops), et.STORAGE_NODE)
    start, duration = block["issue_ns"].to_numpy(np.int64), block["duration_ns"].fillna(0).to_numpy(np.int64)
    return _node(np.arange(first, first + len(ops)), ops, kinds, start, duration, others)


def _gpu_nodes(gpu: pd.DataFrame, first: int) -> bytes:
    rows = len(gpu)
    on_device = gpu["kind"].astype(str).isin(["kernel", "copy", "set"]).to_numpy()
    columns = {"pid": "pid", "tid": "tid", "device": "device", "stream": "stream", "size_bytes": "size_bytes"}
    words = [
        _strings(name, gpu[name].astype(object).fillna("").astype(str).tolist(), gpu[name].notna().to_numpy())
        for name in ("kind", "direction", "source")
    ]
    is_cpu = pb.messages(10, [pb.constant(pb.text(1, "is_cpu_op"), rows), pb.integers(27, (~on_device).astype(np.int64))])
    times = gpu["start_ns"].to_numpy(np.int64), gpu["duration_ns"].to_numpy(np.int64)
    kinds = np.full(rows, et.COMP_NODE)
    others = [*_numbers(gpu, columns), *words, is_cpu]
    return _node(np.arange(first, first + rows), gpu["name"].astype(str).tolist(), kinds, *times, others)
