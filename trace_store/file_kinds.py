"""Decide the kinds of files: dataset, checkpoint, library, ..."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from iotwin.trace_store.raw.records import TYPE_BLOCK, TYPE_CHARACTER, TYPE_DIRECTORY, TYPE_PIPE, TYPE_SOCKET

_TYPES = {TYPE_PIPE: "pipe", TYPE_SOCKET: "socket", TYPE_CHARACTER: "device", TYPE_BLOCK: "device", TYPE_DIRECTORY: "directory"}
_SYSTEM = ("/proc/", "/sys/", "/etc/", "/run/", "anon_inode:")
_TEMPORARY = "/memfd:"
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - a name to recognise, not a file to create
_LIBRARY = ("/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/")
_LIBRARY_PARTS = ("/site-packages/", "/dist-packages/", "/lib/python", "/__pycache__/", "/.pyenv/", "/conda-meta/")
# A recorded twin, *.recording, counts as a program: the emulator executes it as a shell executes a script.
_LIBRARY_SUFFIXES = {".py", ".pyc", ".so", ".egg-link", ".sh", ".recording"}
# A file in a folder of these names is a program if its name has no suffix, or only digits after the dot (python3.11).
_PROGRAM_FOLDERS = {"bin", "sbin", "libexec", "shims"}
_LOG_SUFFIXES = {".log", ".out", ".err"}
_CHECKPOINT_SUFFIXES = {".pt", ".pth", ".chk", ".ckpt", ".keras", ".safetensors", ".pkl", ".meta", ".index", ".distcp"}
_CHECKPOINT_NAMES = {".metadata"}  # the index of a distributed checkpoint of torch
# Checkpoint files of iotwin.common.commit: a rank's tensors and their index, the manifest, the name of the latest checkpoint.
_STORED = re.compile(r"/step-[\d.]+(\.tmp|\.gone)?/(rank-\d+\.(raw|json)|manifest\.json)$|/LATEST$")
# A file with one of these suffixes holds either a training state or samples; kinds_by_use decides which.
_EITHER_SUFFIXES = {*_CHECKPOINT_SUFFIXES, ".bin", ".h5", ".hdf5", ".npz"}
_AGAIN = 1.5  # a file was read repeatedly if the job read at least this multiple of its size
_FEWEST_SAMPLES = 8  # this many files with a checkpoint's suffix are samples if they are read during training
_SETTINGS_SUFFIXES = {".json", ".yaml", ".yml", ".toml", ".cfg", ".conf", ".ini", ".fio", ".txt", ".md"}
_SETTINGS_LIMIT_BYTES = 1 << 20  # text files of which the job read at least this much are data, not settings
_FEWEST_TEXTS = 8  # this many text files of a folder are a corpus if the job read _SETTINGS_LIMIT_BYTES of them together
_FEWEST_LABELS = 16  # this many text files of a folder are labels of samples if the job reads them repeatedly
_CHECKPOINT_MINIMUM_BYTES = 1 << 16  # a file of another suffix is a checkpoint if the job wrote at least this much to it
_RESULT_SUFFIXES = {".json", ".csv", ".parquet", ".png", ".svg", ".html"}  # suffixes of results, from which no job restarts


def file_kind(path: str, file_type: int, read_bytes: int, written_bytes: int, is_log: bool, size_bytes: int | None = None) -> str:
    """Return the kind (one of schema.FILE_KINDS) of one file.

    `file_type`: the type bits of the mode (S_IFMT) >> 12, 0 if the file was never open. `read_bytes` includes mapped bytes.
    `is_log`: the trace stores the file as a log of the job. `size_bytes`: the size at the job's first open, None if unknown.
    """
    if is_log:
        return "log"
    if file_type in _TYPES:
        return _TYPES[file_type]
    found = _kind_of_memory_or_system(path, bool(written_bytes), bool(size_bytes and read_bytes))
    if found:
        return found
    if written_bytes:
        return _kind_of_written(path, written_bytes)
    if _is_library(path):
        return "library"
    return "missing" if file_type == 0 else _kind_of_read(path, read_bytes, size_bytes)


def _kind_of_memory_or_system(path: str, is_written: bool, is_read: bool) -> str | None:
    """Return the kind of a file in memory or of the system, else None. `is_read`: the job read bytes that it did not write."""
    in_memory = path.startswith(_SHARED_MEMORY)
    # A file in memory that the job only reads existed before the job, as a copy of a data set. Others were made by the job.
    if path.startswith(_TEMPORARY) or (in_memory and (is_written or not is_read)):
        return "temporary"
    return "system" if path.startswith(_SYSTEM) or (path.startswith("/dev/") and not in_memory) else None


def _is_library(path: str) -> bool:
    if path.startswith(_LIBRARY) or any(part in path for part in _LIBRARY_PARTS):
        return True
    suffix, folder = _suffix(PurePosixPath(path)), PurePosixPath(path).parent.name
    is_program = folder in _PROGRAM_FOLDERS and (not suffix or suffix[1:].isdigit())
    return is_program or suffix in _LIBRARY_SUFFIXES or ".so." in path or path.endswith("/pyvenv.cfg")


def _kind_of_read(path: str, read_bytes: int, size_bytes: int | None) -> str:
    suffix = _suffix(PurePosixPath(path))
    if suffix in _CHECKPOINT_SUFFIXES or _STORED.search(path):
        return "checkpoint"
    if read_bytes == 0 or (suffix in _SETTINGS_SUFFIXES and read_bytes < _SETTINGS_LIMIT_BYTES):
        return "other"
    return "temporary" if size_bytes == 0 else "dataset"  # first empty, then read: the job wrote it through a memory map


def is_named_checkpoint(path: str) -> bool:
    """Return True if `path` has the name or the suffix of a checkpoint."""
    file = PurePosixPath(path)
    return _suffix(file) in _CHECKPOINT_SUFFIXES or file.name in _CHECKPOINT_NAMES or bool(_STORED.search(path))


@dataclass(frozen=True)
class FileReading:
    """How the job read a file that it never wrote to."""

    path: str
    kind: str  # result of file_kind
    size_bytes: int | None
    read_bytes: int
    first_ns: int
    last_ns: int


def kinds_by_use(files: Sequence[FileReading]) -> list[str]:
    """Return the kind of each of `files`. If the suffix leaves it open (.txt, .pt, ...), the job's use of the file decides.

    The files of one folder with the same suffix form a group, and all get the same kind. The first rule that fits decides:
    - many text files are data (a corpus, labels) if they are large together or read repeatedly;
    - files that the job reads repeatedly are data;
    - many files are data, unless the job reads them all before it begins to read other data;
    - files that the job reads once, before other data, are the state from which it starts (checkpoint);
    - for all other groups the suffix decides.
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
        # A job may open and map its initial state several times, so repeated reads do not make it data.
        state = first and suffix in _CHECKPOINT_SUFFIXES and len(group) < _FEWEST_SAMPLES
        if (again[key] and not state) or (len(group) >= _FEWEST_SAMPLES and not first):
            kind = "dataset"
        else:
            kind = "checkpoint" if first or suffix in _CHECKPOINT_SUFFIXES else "dataset"
        for i in group:
            kinds[i] = kind
    return kinds


def _held(file: FileReading) -> int:
    return file.size_bytes or file.read_bytes


def _with_corpora(files: Sequence[FileReading]) -> list[str]:
    """Return the kind of each file: dataset for text files that are a corpus or labels of samples, else its `kind`."""
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


def _groups(files: Sequence[FileReading], chosen: Iterable[int]) -> dict[tuple[str, str], list[int]]:
    """Return the indices `chosen` of files, grouped by (folder, suffix). Digits after the dot are no suffix."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index in chosen:
        if files[index].read_bytes:
            path = PurePosixPath(files[index].path)
            suffix = _suffix(path)
            groups[str(path.parent), "" if suffix[1:].isdigit() else suffix].append(index)
    return groups


def _suffix(path: PurePosixPath) -> str:
    """Return the suffix of a file name. For model.pth.tar it is .pth, as archives of samples have no names like this."""
    inner = PurePosixPath(path.stem).suffix
    return inner if path.suffix == ".tar" and inner in _CHECKPOINT_SUFFIXES else path.suffix


def _kind_of_written(path: str, written_bytes: int) -> str:
    suffix = _suffix(PurePosixPath(path))
    if is_named_checkpoint(path):
        return "checkpoint"
    if suffix in _LOG_SUFFIXES:
        return "log"
    if suffix == ".pyc":
        return "library"
    return "checkpoint" if written_bytes >= _CHECKPOINT_MINIMUM_BYTES and suffix not in _RESULT_SUFFIXES else "other"
