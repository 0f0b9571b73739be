"""Audit the durability of a job's checkpoints: derive from its calls what a loss of power at any instant would have left."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.trace_store.figures.saved_files import NEVER, SavedFile, saved_files
from iotwin.trace_store.reader import Trace

_NUMBERS = re.compile(r"\d+")
# Parts of file names that number the files of one checkpoint: model-00001-of-00003, mp_rank_02, __0_0.distcp, shard3.
_PARTS = re.compile(r"\d+-of-\d+|(?:rank|shard|part|worker|node|pp|tp|dp|mp)[-_]?\d+|__\d+_\d+", re.IGNORECASE)
_LEAST_BYTES = 4096  # smaller files are no checkpoint files: LATEST, for example, only names a checkpoint


@dataclass
class SavedCheckpoint:
    """The files of one checkpoint. If the job writes the same paths again, they form another SavedCheckpoint."""

    files: list[SavedFile]
    gone_ns: int = NEVER  # after this time, a loss of power may leave neither the checkpoint nor its replacement

    @property
    def begun_ns(self) -> int:
        """The time at which the job opened the first file of the checkpoint."""
        return min(file.begun_ns for file in self.files)

    @property
    def ended_ns(self) -> int:
        """The end of the last call that wrote, synced or renamed one of the files."""
        return max(file.ended_ns for file in self.files)

    @property
    def durable_ns(self) -> int:
        """The time at which all files of the checkpoint had become durable; NEVER if one of them did not."""
        return max(file.durable_ns for file in self.files)


def audit(trace: Trace) -> dict[str, Any]:
    """Return ``{"checkpoints": [...], "safe": bool}``. Safe: at any time, a loss of power would have left a whole checkpoint.

    An entry for a checkpoint has times in seconds from the start of the trace, missing fsync calls, and the spans of time without
    a durable checkpoint. Raises IotwinError if the job wrote no checkpoint.
    """
    found = judged(saved_files(trace), trace.manifest.start_ns, trace.manifest.end_ns)
    if not found["checkpoints"]:
        raise IotwinError(
            f"{trace.path}: the job wrote no checkpoint that iotwin recognises; see its files: iotwin info {trace.path}"
        )
    return found


def judged(files: list[SavedFile], start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return the result of `audit` for `files`, in order of time, of a trace from `start_ns` to `end_ns`."""
    each = _checkpoints(files)
    _note_gone(each)
    end_ns = max([end_ns, *(saved.ended_ns for saved in each)])
    entries = []
    for number, saved in enumerate(each):
        until_ns = each[number + 1].begun_ns if number + 1 < len(each) else end_ns
        # The first checkpoint must survive from the time at which it is durable. If the next one begins earlier than that, it
        # must survive from the time at which it is complete.
        first_ns = saved.durable_ns if saved.durable_ns <= until_ns else saved.ended_ns
        since_ns = saved.begun_ns if number else first_ns
        exposed = _exposed(each, since_ns, until_ns)
        entries.append(_entry(saved, _lost(each, exposed), exposed, start_ns))
    return {"checkpoints": entries, "safe": not any(entry["exposed"] for entry in entries)}


def _checkpoints(files: list[SavedFile]) -> list[SavedCheckpoint]:
    """Group `files` into checkpoints by folder and by numbers in names. A path that is written again begins a new checkpoint."""
    groups: dict[tuple[str, ...], list[SavedFile]] = {}
    current: dict[tuple[str, ...], int] = {}
    for file in files:
        key = _label(file.path)
        number = current.setdefault(key, 0)
        if any(other.path == file.path for other in groups.get((*key, str(number)), ())):
            current[key] = number = number + 1
        groups.setdefault((*key, str(number)), []).append(file)
    found = [SavedCheckpoint(own) for own in groups.values() if sum(file.size_bytes for file in own) >= _LEAST_BYTES]
    return sorted(found, key=lambda saved: saved.begun_ns)


def _label(path: str) -> tuple[str, ...]:
    *folders, name = PurePosixPath(path).parts
    if folders and _NUMBERS.search(_PARTS.sub("", folders[-1])):
        return (str(PurePosixPath(*folders)),)
    return (str(PurePosixPath(*folders)), *_NUMBERS.findall(_PARTS.sub("", PurePosixPath(name).stem)))


def _note_gone(each: list[SavedCheckpoint]) -> None:
    """Set `gone_ns` of each checkpoint to the time at which the first of its files was lost.

    A rename can replace a checkpoint of one file by a file whose bytes are durable. A loss of power then leaves one of the two
    files complete. So the replaced checkpoint is gone only when its replacement is gone.
    """
    by_path: dict[str, SavedCheckpoint] = {}
    for saved in reversed(each):
        saved.gone_ns = min(file.gone_ns for file in saved.files)
        [path, *others] = [file.path for file in saved.files]
        heir = by_path.get(path)
        if heir and not others and saved.files[0].replaced and heir.files[0].synced_ns <= saved.gone_ns:
            saved.gone_ns = heir.gone_ns
        by_path[path] = saved


def _exposed(each: list[SavedCheckpoint], since_ns: int, until_ns: int) -> list[tuple[int, int]]:
    """Return the spans (begin_ns, end_ns) of `since_ns` to `until_ns` in which a loss of power may leave no checkpoint whole."""
    spans, at_ns = [], since_ns
    for begin_ns, end_ns in sorted((saved.durable_ns, saved.gone_ns) for saved in each if saved.durable_ns < saved.gone_ns):
        if begin_ns >= until_ns:
            break
        if begin_ns > at_ns:
            spans.append((at_ns, begin_ns))
        at_ns = max(at_ns, end_ns)
    if at_ns < until_ns:
        spans.append((at_ns, until_ns))
    return [(begin, min(end, until_ns)) for begin, end in spans if begin < until_ns]


def _entry(saved: SavedCheckpoint, lost: list[str], exposed: list[tuple[int, int]], start_ns: int) -> dict[str, Any]:
    def seconds(time_ns: int) -> float:
        return (time_ns - start_ns) / 1e9

    durable_ns = saved.durable_ns
    paths = [file.path for file in saved.files]
    return {
        "name": paths[0] if len(paths) == 1 else str(PurePosixPath(paths[0]).parent),
        "files": len(paths),
        "size_bytes": sum(file.size_bytes for file in saved.files),
        "begun_s": seconds(saved.begun_ns),
        "written_s": seconds(saved.ended_ns),
        "durable_s": None if durable_ns == NEVER else seconds(durable_ns),
        "missing": sorted({line for file in saved.files for line in _missing(file)}),
        "exposed": [{"from_s": seconds(begin), "to_s": seconds(end)} for begin, end in exposed],
        "exposed_s": sum(end - begin for begin, end in exposed) / 1e9,
        "lost": lost,
    }


def _missing(file: SavedFile) -> list[str]:
    name = PurePosixPath(file.path).name
    early = " (the last one came before it)" if file.synced_early else ""
    lines = [f"fsync of {name} after its last write{early}"] if file.synced_ns == NEVER else []
    return lines + [f"fsync of folder {naming.folder} after {naming.how}" for naming in file.names if naming.durable_ns == NEVER]


def _lost(each: list[SavedCheckpoint], exposed: list[tuple[int, int]]) -> list[str]:
    lost = {
        f"{PurePosixPath(file.path).name} {file.gone_how} before another was durable"
        for saved in each
        for file in saved.files
        if any(begin <= file.gone_ns < end for begin, end in exposed)
    }
    return sorted(lost)
