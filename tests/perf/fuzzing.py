"""Fuzzing: inputs that somebody else could have made are given to what reads them, which must take or refuse them.

Refusing is an IotwinError. A finding is anything else that is raised, a process that dies or starts a program, a byte written
outside of the directory at hand, and an input that takes longer than LIMIT_S, twice; waits for a CPU are not counted. Input
number n of a subject depends on its name and n alone, so that every finding can be made again (`one`). Inputs are read by one
process a CPU, whose memory is bounded.
"""

import contextlib
import copy
import json
import math
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.progress import set_quiet

LIMIT_S = 5.0  # for one input
_MEMORY_BYTES, _FILE_BYTES = 4 << 30, 1 << 28  # what one process may take, and write into one file
_POLL_S = 0.2


@dataclass(frozen=True)
class Subject:
    """What is fuzzed. `make` returns an input; `read` gives it to the code, which may write only below the directory given."""

    name: str
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes, Path], object]
    share: float = 1.0  # of the inputs, against those of other subjects: less of what is slow


@dataclass
class Result:
    """What came of a subject's inputs: how many were read, how many of them refused, and the first finding of each kind."""

    inputs: int = 0
    refused: int = 0
    findings: dict[str, tuple[int, str]] = field(default_factory=dict)  # by kind: number of the first such input, and words


def fuzz(subject: Subject, inputs: int, first: int = 0) -> Result:
    """Read the inputs number `first` and on of the subject; one process a CPU."""
    result = Result()
    with _scratch() as scratch:
        workers = len(os.sched_getaffinity(0))
        crew = [_Worker(subject, scratch / str(number), first + number, workers, first + inputs) for number in range(workers)]
        while crew:
            crew = [worker for worker in crew if worker.is_at_work(result)]
            time.sleep(_POLL_S)
    return result


def one(subject: Subject, number: int) -> str | None:
    """Read input `number` in this process; return the finding, None when there is none. The traceback goes to stderr."""
    with _scratch() as scratch:
        watch = _Watch(scratch)
        return _read(subject, number, watch, show=True)[1]


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="iotwin-fuzz-", dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


class _Worker:
    """A process that reads every `step`-th input; started again behind one that kills it or holds it up."""

    def __init__(self, subject: Subject, scratch: Path, first: int, step: int, end: int) -> None:
        self._subject, self._scratch, self._step, self._end = subject, scratch, step, end
        self._place = _Place(mmap.mmap(-1, _Place.LAYOUT.size))
        self._again = -1  # the input that took too long once
        scratch.mkdir()
        self._start(first)

    def _start(self, first: int) -> None:
        self._place.begin(first, None)
        context = multiprocessing.get_context("fork")
        self._pipe, child = context.Pipe()
        arguments = (self._subject, self._scratch, range(first, self._end, self._step), self._place, child)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        child.close()

    def is_at_work(self, result: Result) -> bool:
        """Take in what was found since the last call; False once all inputs are read."""
        ended = not self._process.is_alive()  # asked first: what is sent before the end is then there
        with contextlib.suppress(EOFError):
            while self._pipe.poll():
                number, kind, words = self._pipe.recv()
                result.findings.setdefault(kind, (number, words))
        number, begun, waited, inputs, refused = self._place.content()
        if ended and self._process.exitcode == 0:
            result.inputs += inputs
            result.refused += refused
            return False
        if ended:
            self._after(number, f"the process died (exit status {self._process.exitcode})", result)
        elif time.monotonic() - begun - (_waited_s(self._process.pid) - waited) > LIMIT_S:
            self._process.kill()
            self._process.join()
            # The machine may have been busy with its disk: an input hangs if it does so twice.
            if self._again == number:
                self._after(number, f"took longer than {LIMIT_S:.0f} s", result)
            else:
                self._again = number
                self._start(number)
        return True

    def _after(self, number: int, finding: str, result: Result) -> None:
        self._place.end()
        result.findings.setdefault(f"{finding}, input {number}", (number, ""))
        self._start(number + self._step)


class _Place:
    """Where a worker is, in memory that it shares: the number of the input being read, when it was begun and how long the worker
    had waited for a CPU by then (s), how many were read.
    """

    LAYOUT = struct.Struct("<qddqq")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def content(self) -> tuple[int, float, float, int, int]:
        number, begun, waited, inputs, refused = self.LAYOUT.unpack(self._memory[:])
        return number, begun, waited, inputs, refused

    def begin(self, number: int, pid: int | None) -> None:
        self._memory[:] = self.LAYOUT.pack(number, time.monotonic(), _waited_s(pid), *self.content()[3:])

    def end(self, was_refused: bool = False) -> None:
        number, begun, waited, inputs, refused = self.content()
        self._memory[:] = self.LAYOUT.pack(number, begun, waited, inputs + 1, refused + was_refused)


def _waited_s(pid: int | None) -> float:
    """Seconds that a process was ready to run while others ran (proc(5), schedstat); 0 of one that is gone or not yet there."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _work(subject: Subject, scratch: Path, numbers: range, place: _Place, pipe: Connection) -> None:
    """Read the inputs; send (number, kind, words) of findings."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    set_quiet(True)
    shutil.rmtree(scratch)  # of the process before
    scratch.mkdir()
    watch = _Watch(scratch)
    for number in numbers:
        place.begin(number, os.getpid())
        was_refused, finding = _read(subject, number, watch)
        place.end(was_refused)
        if finding:
            kind, _, words = finding.partition(": ")
            pipe.send((number, kind, words))


def _read(subject: Subject, number: int, watch: "_Watch", show: bool = False) -> tuple[bool, str | None]:
    """Return whether the input was refused, and the finding."""
    content = subject.make(random.Random(f"{subject.name} {number}"))
    refused, finding = False, None
    try:
        with watch:
            subject.read(content, watch.directory)
    except IotwinError as error:
        refused = True
        if "\n" in str(error):
            finding = f"an error of several lines: {str(error).splitlines()[0]}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if show:
            traceback.print_exc()
        finding = _words(error)
    return refused, watch.breach() or finding


def _words(error: BaseException) -> str:
    """The error and the last place of ours that it came through."""
    foreign = ("site-packages", sys.base_prefix + "/lib", "<", ".so")
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not any(part in frame.filename for part in foreign)]
    where = f"{Path(places[-1].filename).name}:{places[-1].lineno}" if places else "?"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:120]}"


_WRITING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
            "os.utime", "shutil.rmtree", "shutil.copyfile", "shutil.move")  # fmt: skip
_STARTING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")


class _Watch:
    """Watches the directory that inputs may write to: for writes outside of it, and for started programs."""

    def __init__(self, scratch: Path) -> None:
        self.directory = scratch / "at_hand"
        self.directory.mkdir(parents=True)
        self._scratch = scratch
        self._victim = scratch / "victim.txt"
        self._victim.write_text("somebody's")
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.directory)
        os.chdir(self.directory)
        self._before = self._state()
        self._breach: str | None = None
        self._watching = False
        sys.addaudithook(self._see)

    def __enter__(self) -> None:
        self._watching = True

    def __exit__(self, *_: object) -> None:
        self._watching = False
        for entry in os.scandir(self.directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink()

    def breach(self) -> str | None:
        """Return what happened outside of the directory since the last call, None when nothing did."""
        found, self._breach = self._breach, None
        after = self._state()
        if after != self._before:
            found, self._before = found or "something was written outside of the directory at hand", after
        return found

    def _state(self) -> list[Any]:
        entries = [self._scratch.stat(), self._victim.stat() if self._victim.exists() else None]
        return [entry and (entry.st_mtime_ns, entry.st_ctime_ns, entry.st_size) for entry in entries]

    def _see(self, event: str, arguments: Sequence[Any]) -> None:
        if not self._watching:
            return
        if event in _STARTING:
            self._breach = self._breach or f"{event}: {arguments[:1]}"
        elif event in _WRITING or (event == "open" and _writes(arguments)):
            for path in arguments[: 2 if event in ("os.rename", "os.link", "shutil.move", "shutil.copyfile") else 1]:
                if isinstance(path, str | bytes | os.PathLike) and not self._is_within(os.fsdecode(path)):
                    self._breach = self._breach or f"{event} outside: {os.fsdecode(path)!r:.120}"

    def _is_within(self, path: str) -> bool:
        if path == os.devnull or path.startswith("/proc/self/fd/"):
            return True
        whole = os.path.realpath(self.directory / path) if "\0" not in path else path
        return whole.startswith(f"{self.directory}/") or whole == str(self.directory)


def _writes(arguments: Sequence[Any]) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


# Values that programs trip over; a deep nesting is put in as text, as no encoder writes one.
_DEEP = "as deep as that"
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 255, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    -0.0, 0.5, 1e19, 1e300, math.inf, -math.inf, math.nan, "", " ", "\0", "\x1b]0;title\x07\x1b[2J", "../victim.txt",
    "/tmp/../../victim.txt", "..", ".", "a/../../victim.txt", "/", "x" * 300, "x" * 70_000, "\ud800", "日本", "1e999", "5", "-1",
    "a\nb", "${oc.env:HOME}", "${a}", [], {}, [[]], {"": None}, [None], {"a": {"b": []}}, _DEEP,
)  # fmt: skip
_ODD_BYTES = (
    b"\0", b"\0" * 64, b"\xff" * 8, b"\xff", b"\x1b]0;t\x07", b"\n", b"\r\n", b" ", b"\"", b"\\", b"{", b"}", b"[", b"]",
    b",", b":",
    b"-", b"1e999", b"NaN", b"9" * 25, b"99999999999", b"../", b"/", b"\xe2\x82", b"\xed\xa0\x80", b"[" * 5000, b"{\"a\":" * 5000,
)  # fmt: skip


def damaged(rng: random.Random, content: bytes, words: Sequence[bytes] = ()) -> bytes:
    """Return `content` with one to four damages: bits, bytes, pieces cut, doubled, put elsewhere; `words` are put in, too."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        at = rng.randrange(len(data) + 1)
        length = min(rng.choice((1, 1, 2, 4, 8, 16, 100, 1000)), len(data) - at)
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            data[at : at + length] = b""
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            data[at : at + rng.choice((0, length))] = rng.choice([*words, *_ODD_BYTES])
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            number = rng.choice([value for value in ODD_VALUES if type(value) is int]) % 2**64
            data[at : at + 8] = number.to_bytes(8, "little")[: rng.choice((1, 2, 4, 8))]
        else:
            data[at : at + length] = bytes(length)
    return bytes(data)


def lying(rng: random.Random, document: Any, values: Sequence[Any] = ()) -> Any:
    """Return a copy of the JSON-like document with one to three values odd (or of `values`), keys lost or doubled."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            return rng.choice(ODD_VALUES)
        holder, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 50))
        elif kind == 1:
            holder[str(rng.choice(ODD_VALUES))] = holder.pop(key)
        elif kind == 2:
            other_holder, other = rng.choice(places)
            holder[key] = copy.deepcopy(other_holder[other])
        else:
            holder[key] = copy.deepcopy(rng.choice([*values, *ODD_VALUES]))
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (holder, key or place) of the document."""
    items = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in items:
        yield document, key
        yield from _places(value)


def as_json(document: Any) -> bytes:
    """Return the document as JSON text, with NaN, infinities and deep nestings where it has them."""
    text = json.dumps(document)
    if _DEEP in text:
        text = text.replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000)
    return text.encode()
