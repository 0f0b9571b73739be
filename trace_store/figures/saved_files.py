"""The checkpoint files that a traced job wrote: when their bytes and names became durable, and when they were lost.

"Durable" means what POSIX guarantees. Bytes are durable after an fsync of the file that begins after the write. A name is durable
after an fsync of the folder that begins after the call that gave the name. Further guarantees of some file systems do not count.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import pandas as pd
from pyarrow import compute as pc

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace

NEVER = 2**63 - 1
_ALL_FILES = ("sync", "syncfs")
_RENAMES = ("rename", "renameat", "renameat2")
_REMOVALS = ("unlink", "unlinkat")
_MAKES = ("mkdir", "mkdirat")
_SYNCS = tuple(op for op in schema.SYNC_OPS if "sync_file_range" not in op)  # sync_file_range does not flush the disk's cache
_OPS = (*schema.OPEN_OPS, *schema.CLOSE_OPS, *schema.WRITE_OPS, *_SYNCS, *_RENAMES, *_REMOVALS, *_MAKES)


class Naming(NamedTuple):
    """A call that gave a name to a file or to the file's folder."""

    start_ns: int
    end_ns: int
    folder: str  # an fsync of this folder makes the name durable
    how: str  # description of the call, with the file's name
    durable_ns: int


@dataclass
class SavedFile:
    """A checkpoint file that the job wrote. If the job opens the file again and writes to it, that makes another SavedFile."""

    path: str  # name of the complete file
    begun_ns: int
    written_ns: int  # end of the last write
    size_bytes: int
    synced_ns: int  # end of the first fsync after the last write
    synced_early: bool  # True if there was any fsync
    names: list[Naming] = field(default_factory=list)  # all must be durable for the file to be found
    ended_ns: int = 0  # end of the last write, fsync or rename
    gone_ns: int = NEVER  # after this time, a loss of power may leave nothing of the file
    gone_how: str = ""
    replaced: bool = False  # True if another file took the name at gone_ns

    @property
    def durable_ns(self) -> int:
        """The time at which all bytes and names of the file had become durable."""
        return max(self.synced_ns, *(name.durable_ns for name in self.names), 0)


def saved_files(trace: Trace) -> list[SavedFile]:
    """Return the checkpoint files that the job wrote, in order of `begun_ns`."""
    files = trace.files()
    kept = files[files["kind"] == "checkpoint"]
    if kept.empty:
        return []
    calls = _CheckpointCalls(trace, files, kept)
    found = [saved for file_id in kept["file_id"].tolist() for saved in _saved_each_time(calls, int(file_id))]
    _note_replaced(found)
    return sorted(found, key=lambda saved: saved.begun_ns)


class _CheckpointCalls:
    def __init__(self, trace: Trace, files: pd.DataFrame, kept: pd.DataFrame) -> None:
        names = [*kept["path"], *kept["renamed_to"].dropna()]
        folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
        around = files[files["path"].isin(folders) | files["renamed_to"].isin(folders)]
        self.files = files
        wanted = [*kept["file_id"], *around["file_id"]]
        chosen = (pc.field("file_id").isin(wanted) & pc.field("op").isin(_OPS)) | pc.field("op").isin(_ALL_FILES)
        events = trace.events_frame(("start_ns", "duration_ns", "op", "file_id", "result", "flags"), chosen)
        events = events[events["result"] >= 0].assign(end_ns=events["start_ns"] + events["duration_ns"].clip(lower=0))
        events["op"] = events["op"].astype(str)
        self._all_synced = _spans(events[events["op"].isin(_ALL_FILES)])
        events = events[events["file_id"].notna()]
        self._by_file = dict(tuple(events.groupby(events["file_id"].astype(np.int64))))
        self._rows_of: dict[str, list[int]] = defaultdict(list)
        self._last_named: dict[str, list[int]] = defaultdict(list)
        for file_id, name in zip(kept["file_id"], kept["renamed_to"].fillna(kept["path"]), strict=True):
            self._last_named[name].append(int(file_id))
        for file_id, path, last in around[["file_id", "path", "renamed_to"]].to_numpy().tolist():
            for name in {path, last if isinstance(last, str) else path}:
                self._rows_of[name].append(int(file_id))

    def of(self, file_id: int) -> pd.DataFrame:
        """Return the calls on the file `file_id`, in order of start."""
        return self._by_file.get(file_id, next(iter(self._by_file.values()), pd.DataFrame()).iloc[:0])

    def of_folder(self, path: str, ops: Sequence[str]) -> pd.DataFrame:
        """Return the calls named in `ops` on folders whose first or last path is `path`, in order of start."""
        own = [self.of(row) for row in self._rows_of[path]]
        calls = pd.concat(own) if own else self.of(-1)
        return calls[calls["op"].isin(ops)].sort_values("start_ns", kind="stable")

    def removals_ns(self, name: str, after_ns: int) -> list[int]:
        """Return the ascending times, from `after_ns` on, at which files whose last name is `name` were removed."""
        own = [self.of(row) for row in self._last_named[name]]
        starts = [start for calls in own for start in calls.loc[calls["op"].isin(_REMOVALS), "start_ns"].tolist()]
        return sorted(start for start in starts if start >= after_ns)

    def synced_ns(self, own: list[tuple[int, int]], after_ns: int) -> int:
        """Return the end of the first fsync, of the file itself or of all files, that began at `after_ns` or later; NEVER without
        one.

        `own`: (start, end) of the fsync calls on one file or folder, in order of start.
        """
        found = NEVER
        for spans in (own, self._all_synced):
            index = bisect_left(spans, (after_ns, 0))
            found = min([found, *(end for _, end in spans[index : index + 1])])
        return found

    def naming(self, call: "pd.Series", path: str, how: str) -> Naming:
        """Return the Naming for `call`, which gave the name `path`. `how` describes the call, such as 'the rename to'."""
        folder = str(PurePosixPath(path).parent)
        end_ns = int(call["end_ns"])
        durable_ns = self.synced_ns(_spans(self.of_folder(folder, _SYNCS)), end_ns)
        return Naming(int(call["start_ns"]), end_ns, folder, f"{how} {PurePosixPath(path).name}", durable_ns)


def _spans(events: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(events["start_ns"].tolist(), events["end_ns"].tolist(), strict=True))


def _saved_each_time(calls: _CheckpointCalls, file_id: int) -> list[SavedFile]:
    """Return a SavedFile for each time that the job opened the file `file_id`, after all earlier closes, and wrote to it."""
    events = calls.of(file_id)
    opened = events["op"].isin(schema.OPEN_OPS).astype(np.int64)
    open_before = (opened - events["op"].isin(schema.CLOSE_OPS)).cumsum() - opened
    visits = ((opened == 1) & (open_before <= 0)).cumsum()
    writes = events[events["op"].isin(schema.WRITE_OPS) & (events["result"] > 0)]
    of_writes = visits.loc[writes.index]
    starts = events["start_ns"].groupby(visits).min()
    found: list[SavedFile] = []
    written = [int(visit) for visit in of_writes.unique()]
    for visit, following in zip(written, [*written[1:], None][: len(written)], strict=True):
        until_ns = NEVER if following is None else int(starts[following])
        since = events[(events["start_ns"] >= starts[visit]) & (events["start_ns"] < until_ns)]
        saved = _saved(calls, file_id, since, writes[of_writes == visit])
        if following is not None and not any(since["op"].isin(_RENAMES)):
            # strace identifies files by name. After a rename, a write to the old name goes to a new file and overwrites nothing.
            saved.gone_ns, saved.gone_how = min((saved.gone_ns, saved.gone_how), (until_ns, "was overwritten in place"))
        found.append(saved)
    return found


def _saved(calls: _CheckpointCalls, file_id: int, since: pd.DataFrame, writes: pd.DataFrame) -> SavedFile:
    row = calls.files.iloc[file_id]
    written_ns, begun_ns = int(writes["end_ns"].max()), int(since["start_ns"].min())
    syncs = _spans(since[since["op"].isin(_SYNCS)])
    synced_ns = calls.synced_ns(syncs, written_ns)
    saved = SavedFile(str(row["path"]), begun_ns, written_ns, int(writes["result"].sum()), synced_ns, bool(syncs))
    folder = str(PurePosixPath(saved.path).parent)
    last = row["renamed_to"] if isinstance(row["renamed_to"], str) else saved.path
    removed = calls.removals_ns(last, begun_ns)
    last_ns = removed[0] if removed else NEVER
    around = calls.of_folder(folder, _RENAMES)
    around = around[(around["start_ns"] >= begun_ns) & (around["start_ns"] <= last_ns)]
    own = since[since["op"].isin(_RENAMES)]
    renames = pd.concat([own.assign(of_folder=False), around.assign(of_folder=True)]).sort_values("start_ns", kind="stable")
    if removed:
        saved.gone_ns, saved.gone_how = last_ns, "was removed"
        if len(renames) > 1:  # ignore the last rename, which only moved the file away to remove it
            saved.gone_ns, renames = int(renames["start_ns"].iloc[-1]), renames.iloc[:-1]
    _add_names(calls, saved, row, renames)
    ends = [written_ns, *(name.end_ns for name in saved.names), *(end for _, end in syncs)]
    saved.ended_ns = max(end for end in ends if end < NEVER)
    return saved


def _add_names(calls: _CheckpointCalls, saved: SavedFile, row: "pd.Series", renames: pd.DataFrame) -> None:
    """Add the names of file and folder that must be durable for `saved` to be found; set the final path of `saved`."""
    path, last = PurePosixPath(saved.path), row["renamed_to"] if isinstance(row["renamed_to"], str) else None
    own, around = renames[~renames["of_folder"].astype(bool)], renames[renames["of_folder"].astype(bool)]
    opens = calls.of(int(row["file_id"]))
    created = opens[opens["op"].isin(schema.OPEN_OPS) & ((opens["flags"] & schema.FLAG_CREATE) != 0)]
    if len(own):
        final = path.parent / PurePosixPath(last or saved.path).name if len(around) else PurePosixPath(last or saved.path)
        saved.names.append(calls.naming(own.iloc[-1], str(final), "the rename to"))
        path = final
    elif len(created) and not (row["size_bytes"] > 0):
        saved.names.append(calls.naming(created.iloc[0], str(path), "the creation of"))
    made = calls.of_folder(str(PurePosixPath(saved.path).parent), _MAKES)
    made = made[made["start_ns"] <= saved.begun_ns]
    if len(around):
        parent = PurePosixPath(last or saved.path).parent
        folder = parent.with_name(parent.name.removesuffix(".gone"))  # iotwin.common.commit adds .gone before it removes a folder
        saved.names.append(calls.naming(around.iloc[-1], str(folder), "the rename to"))
        path = folder / path.name
    elif len(made):
        saved.names.append(calls.naming(made.iloc[-1], str(path.parent), "the making of"))
    saved.path = str(path)


def _note_replaced(found: list[SavedFile]) -> None:
    last: dict[str, SavedFile] = {}
    for saved in sorted(found, key=lambda each: each.ended_ns):
        renamed = [name for name in saved.names if name.how.startswith("the rename")]
        before = last.get(saved.path)
        if before is not None and renamed and renamed[0].start_ns < before.gone_ns:
            before.gone_ns, before.gone_how, before.replaced = renamed[0].start_ns, "was replaced", True
        last[saved.path] = saved
