"""What a file is to the job (data set, checkpoint, library, ...) and what a process is (rank, loader, helper)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from tracing_tools.trace.raw.records import TYPE_BLOCK, TYPE_CHARACTER, TYPE_DIRECTORY, TYPE_PIPE, TYPE_SOCKET

_TYPES = {TYPE_PIPE: "pipe", TYPE_SOCKET: "socket", TYPE_CHARACTER: "device", TYPE_BLOCK: "device", TYPE_DIRECTORY: "directory"}
_SYSTEM = ("/proc/", "/sys/", "/etc/", "/run/", "anon_inode:")
_TEMPORARY = "/memfd:"
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - a name to recognise, not a file to make
_LIBRARY = ("/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/")
_LIBRARY_PARTS = ("/site-packages/", "/dist-packages/", "/lib/python", "/__pycache__/", "/.pyenv/", "/conda-meta/")
# .recording: what a recorded twin replays; it is the twin's program, as a script is the job's.
_LIBRARY_SUFFIXES = {".py", ".pyc", ".so", ".egg-link", ".sh", ".recording"}
# A file without a suffix (3.11 is none) in one is a program: its interpreter reads it like any other file.
_PROGRAM_FOLDERS = {"bin", "sbin", "libexec", "shims"}
_LOG_SUFFIXES = {".log", ".out", ".err"}
_CHECKPOINT_SUFFIXES = {".pt", ".pth", ".chk", ".ckpt", ".keras", ".safetensors", ".pkl", ".meta", ".index", ".distcp"}
_CHECKPOINT_NAMES = {".metadata"}  # what torch's distributed checkpoints call their index
# What common.commit writes: a rank's part of a checkpoint, and what tells of it.
_STORED = re.compile(r"/step-[\d.]+(\.tmp|\.gone)?/(rank-\d+\.(raw|json)|manifest\.json)$|/LATEST$")
# Files that hold either states or samples: only their use tells which.
_EITHER_SUFFIXES = {*_CHECKPOINT_SUFFIXES, ".bin", ".h5", ".hdf5", ".npz"}
_AGAIN = 1.5  # a file of which this many times its size is read was read again
_FEWEST_SAMPLES = 8  # so many files with a checkpoint's suffix, each read once during training, are samples
_SETTINGS_SUFFIXES = {".json", ".yaml", ".yml", ".toml", ".cfg", ".conf", ".ini", ".fio", ".txt", ".md"}
_SETTINGS_LIMIT_BYTES = 1 << 20  # a text file larger than this is data, whatever its name
# So many of a folder's text files are a corpus if together they bring as much as one that is data by itself.
_FEWEST_TEXTS = 8
_FEWEST_LABELS = 16  # so many that are read again and again are data however small: labels or transcripts, one a sample
_CHECKPOINT_MINIMUM_BYTES = 1 << 16
_RESULT_SUFFIXES = {".json", ".csv", ".parquet", ".png", ".svg", ".html"}  # what a job tells, not what it restarts from


def file_kind(path: str, file_type: int, read_bytes: int, written_bytes: int, is_log: bool, size_bytes: int | None = None) -> str:
    """Return the kind (one of schema.FILE_KINDS) of one file.

    `file_type` is S_IFMT >> 12, 0 when the file was never open; the byte counts are the job's own reads (or mappings) and writes.
    `size_bytes` is what the file held when the job first opened it, None where that is not known.
    """
    if is_log:
        return "log"
    if file_type in _TYPES:
        return _TYPES[file_type]
    in_memory = path.startswith(_SHARED_MEMORY)
    # What lay in memory before the job and is only read was put there to be read, as data sets are; else the job made it.
    if path.startswith(_TEMPORARY) or (in_memory and (written_bytes or not (size_bytes and read_bytes))):
        return "temporary"
    if path.startswith(_SYSTEM) or (path.startswith("/dev/") and not in_memory):
        return "system"
    suffix, folder = _suffix(PurePosixPath(path)), PurePosixPath(path).parent.name
    if written_bytes:
        return "checkpoint" if _STORED.search(path) else _kind_of_written(PurePosixPath(path).name, suffix, written_bytes)
    in_library = path.startswith(_LIBRARY) or any(part in path for part in _LIBRARY_PARTS)
    is_program = folder in _PROGRAM_FOLDERS and (not suffix or suffix[1:].isdigit())
    if in_library or is_program or suffix in _LIBRARY_SUFFIXES or ".so." in path or path.endswith("/pyvenv.cfg"):
        return "library"
    if file_type == 0:
        return "missing"
    if suffix in _CHECKPOINT_SUFFIXES or _STORED.search(path):
        return "checkpoint"
    if read_bytes == 0 or (suffix in _SETTINGS_SUFFIXES and read_bytes < _SETTINGS_LIMIT_BYTES):
        return "other"
    if size_bytes == 0:  # it was empty: what the job read of it, it had put there through a map
        return "temporary"
    return "dataset"


def kind_of_removed(path: str) -> str:
    """Return the kind of a file that was removed and never opened: an old checkpoint is called like one."""
    named = _suffix(PurePosixPath(path)) in _CHECKPOINT_SUFFIXES or PurePosixPath(path).name in _CHECKPOINT_NAMES
    return "checkpoint" if named or _STORED.search(path) else "other"


@dataclass(frozen=True)
class Reading:
    """How a file was read that the job never wrote."""

    path: str
    kind: str  # as file_kind has it
    size_bytes: int | None
    read_bytes: int
    first_ns: int
    last_ns: int


def kinds_by_use(files: Sequence[Reading]) -> list[str]:
    """Return the kinds of read files, those that may be samples, settings or a state (.txt, .pt, ...) by how they were read.

    Files of a folder and suffix go together. Many small text files that bring much, or that are read again and again, are data
    (a corpus, labels), not settings. What is read again and again is data; so are many files that are read while no other data
    is. What is read once, before more data is, or is of a few with a state's suffix and read only then, is a state that the job
    starts from (checkpoint). Else the suffix says.
    """
    kinds = _with_corpora(files)
    groups = _groups(files, [i for i, kind in enumerate(kinds) if kind in ("dataset", "checkpoint")])
    begun = {key: min(files[i].first_ns for i in group) for key, group in groups.items()}
    read = {key: sum(files[i].read_bytes for i in group) for key, group in groups.items()}
    again = {key: _AGAIN * sum(_held(files[i]) for i in group) <= read[key] for key, group in groups.items()}
    for (folder, suffix), group in groups.items():
        if suffix not in _EITHER_SUFFIXES or all(_STORED.search(files[i].path) for i in group):
            continue
        key, ended = (folder, suffix), max(files[i].last_ns for i in group)
        others = [other for other in groups if other != key and (again[other] or read[other] > read[key])]
        first = any(begun[other] > ended for other in others)
        # A state may be opened, and mapped, several times.
        state = first and suffix in _CHECKPOINT_SUFFIXES and len(group) < _FEWEST_SAMPLES
        if (again[key] and not state) or (len(group) >= _FEWEST_SAMPLES and not first):
            kind = "dataset"
        else:
            kind = "checkpoint" if first or suffix in _CHECKPOINT_SUFFIXES else "dataset"
        for i in group:
            kinds[i] = kind
    return kinds


def _held(file: Reading) -> int:
    """Bytes of the file, where they are not known those read of it."""
    return file.size_bytes or file.read_bytes


def _with_corpora(files: Sequence[Reading]) -> list[str]:
    """Return the kinds of the files, text files of a corpus, and labels of samples, being data."""
    kinds = [file.kind for file in files]
    texts = [
        i for i, file in enumerate(files) if file.kind == "other" and _suffix(PurePosixPath(file.path)) in _SETTINGS_SUFFIXES
    ]
    for group in _groups(files, texts).values():
        read, held = (sum(sizes) for sizes in zip(*((files[i].read_bytes, _held(files[i])) for i in group), strict=True))
        much, again = read >= _SETTINGS_LIMIT_BYTES, read >= _AGAIN * held
        if (len(group) >= _FEWEST_TEXTS and much) or (len(group) >= _FEWEST_LABELS and again):
            for i in group:
                kinds[i] = "dataset"
    return kinds


def _groups(files: Sequence[Reading], chosen: Iterable[int]) -> dict[tuple[str, str], list[int]]:
    """Return which of the chosen files, as far as read, go together: those of a folder and suffix, a number being none."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index in chosen:
        if files[index].read_bytes:
            path = PurePosixPath(files[index].path)
            suffix = _suffix(path)
            groups[str(path.parent), "" if suffix[1:].isdigit() else suffix].append(index)
    return groups


def _suffix(path: PurePosixPath) -> str:
    """Return what the name says that the file holds: of model.pth.tar .pth, as no archive of samples is called."""
    inner = PurePosixPath(path.stem).suffix
    return inner if path.suffix == ".tar" and inner in _CHECKPOINT_SUFFIXES else path.suffix


def _kind_of_written(name: str, suffix: str, written_bytes: int) -> str:
    if suffix in _LOG_SUFFIXES:
        return "log"
    if suffix == ".pyc":
        return "library"
    large = written_bytes >= _CHECKPOINT_MINIMUM_BYTES and suffix not in _RESULT_SUFFIXES
    named = suffix in _CHECKPOINT_SUFFIXES or name in _CHECKPOINT_NAMES
    return "checkpoint" if named or large else "other"


def process_roles(
    pids: Sequence[int], parents: Sequence[int], has_executed: Sequence[bool], dataset_bytes: NDArray[np.int64]
) -> list[str]:
    """Return the role of each process: loaders are forks (no exec) that read the data set for a parent, ranks those parents.

    Without loaders a process that reads the data set itself is a rank; everything else is a helper. All four arguments have one
    entry a process.
    """
    known = set(pids)
    loader = [
        not ran and parent in known and bool(size)
        for parent, ran, size in zip(parents, has_executed, dataset_bytes.tolist(), strict=True)
    ]
    fed = {parent for parent, is_loader in zip(parents, loader, strict=True) if is_loader}
    roles = []
    for pid, is_loader, size in zip(pids, loader, dataset_bytes.tolist(), strict=True):
        roles.append("loader" if is_loader else "rank" if pid in fed or size else "helper")
    return roles
