"""An address of the Docker Engine at which the start of one container waits until it is watched.

A launcher (docker run, a script, the SDK) has it as DOCKER_HOST. The gate copies bytes between launcher and engine, and looks at
nothing but the first line of what a launcher asks: a request to start the container waits for `open`. So it does not depend on
the machine's load whether the tracer or the engine comes first.
"""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

_UNIX = "unix://"
_PIECE_BYTES = 1 << 16
_LONGEST_LINE = 1 << 13
_PREFIX, _SOCKET = "iotwin-engine-", "docker.sock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = re.compile(rb"POST (?:/v[\d.]+)?/containers/create\?(\S*) HTTP/")
_START = re.compile(rb"POST (?:/v[\d.]+)?/containers/([^/?\s]+)/start(?:\?\S*)? HTTP/")


class EngineGate:
    """Listens at `address` until it is closed; `saw_creation` says that it was there that the container was created."""

    def __init__(self, engine: str, name: str, name_of: Callable[[str], str | None]) -> None:
        """`engine` is the engine's own address (see `can_gate`); `name_of` returns the name of a container given by id."""
        self._engine, self._name, self._name_of = engine.removeprefix(_UNIX), name, name_of
        self.saw_creation = False
        self._may_start = threading.Event()
        self._is_closed = False
        self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX))  # nobody else's: who reaches the engine is root
        self._held = os.open(self._directory, _FOLDER)
        fcntl.flock(self._held, fcntl.LOCK_EX)  # before there is a socket: it says that we live
        self.address = f"{_UNIX}{self._directory}/{_SOCKET}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address.removeprefix(_UNIX))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self) -> None:
        """Let the container start."""
        self._may_start.set()

    def close(self) -> None:
        """Take no more launchers; a start that still waits is refused."""
        self._is_closed = not self._may_start.is_set()
        self._may_start.set()
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                launcher, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(launcher,), daemon=True).start()

    def _serve(self, launcher: socket.socket) -> None:
        with launcher, socket.socket(socket.AF_UNIX) as engine, contextlib.suppress(OSError):
            engine.connect(self._engine)
            back = threading.Thread(target=_copy, args=(engine, launcher), daemon=True)
            back.start()
            while piece := _piece(launcher):
                if not self._may_pass(piece):
                    engine.shutdown(socket.SHUT_RDWR)
                    break
                engine.sendall(piece)
            else:
                engine.shutdown(socket.SHUT_WR)
            back.join()

    def _may_pass(self, piece: bytes) -> bool:
        """Wait, if it is for this container to start; whether it may then."""
        if creation := _CREATE.match(piece):
            if parse_qs(creation[1].decode(errors="replace")).get("name") == [self._name]:
                self.saw_creation = True
        elif (start := _START.match(piece)) and self._name_of(start[1].decode(errors="replace")) == self._name:
            self._may_start.wait()
            return not self._is_closed
        return True


def can_gate(engine: str) -> bool:
    """Whether the engine at that address is on this machine and can have a gate."""
    return engine.startswith(_UNIX)


def remove_stale_gates() -> list[str]:
    """Remove the directories that killed tracers of this user left behind; return their names.

    Such a directory is its user's alone, holds a gate's socket and nothing else, and no process has it locked.
    """
    return [path.name for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*") if _was_removed(path)]


def _was_removed(path: Path) -> bool:
    try:
        folder = os.open(path, _FOLDER)
    except OSError:  # a link, a file, another user's
        return False
    try:
        status = os.fstat(folder)
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700 or names != [_SOCKET]:
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not stat.S_ISSOCK(os.stat(_SOCKET, dir_fd=folder, follow_symlinks=False).st_mode):
            return False
        os.unlink(_SOCKET, dir_fd=folder)
        path.rmdir()
    except OSError:  # a living tracer's, or already gone
        return False
    finally:
        os.close(folder)
    return True


def _piece(launcher: socket.socket) -> bytes:
    """Return what comes next, if it is a request with the whole of its first line."""
    piece = launcher.recv(_PIECE_BYTES)
    while piece.startswith(b"POST ") and b"\r\n" not in piece and len(piece) < _LONGEST_LINE:
        more = launcher.recv(_PIECE_BYTES)
        if not more:
            break
        piece += more
    return piece


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
