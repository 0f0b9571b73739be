"""A proxy of the Docker Engine that delays the start of one container until the tracer watches the container.

A launcher (docker run, a script, the SDK) receives the proxy's address as DOCKER_HOST. The proxy copies bytes between launcher
and engine, and parses only the first line of each request. A request to start the container waits until `EngineGate.open`.
"""

import contextlib
import re
import socket
import stat
import threading
from collections.abc import Callable
from urllib.parse import parse_qs

from iotwin.tracing_tools.targets.temporary_folders import HeldFolder, remove_stale

_UNIX = "unix://"
_PIECE_BYTES = 1 << 16
_LONGEST_LINE = 1 << 13
_PREFIX, _SOCKET, _MODE = "iotwin-engine-", "docker.sock", 0o700  # 0700: every user who reaches the engine can become root
_CREATE = re.compile(rb"POST (?:/v[\d.]+)?/containers/create\?(\S*) HTTP/")
_START = re.compile(rb"POST (?:/v[\d.]+)?/containers/([^/?\s]+)/start(?:\?\S*)? HTTP/")


class EngineGate:
    """A proxy at `address` between a launcher and the engine, which holds back the start of one container until `open`.

    `saw_creation` becomes True when the launcher asks the engine to create that container.
    """

    def __init__(self, engine: str, name: str, name_of: Callable[[str], str | None]) -> None:
        """Gate the container `name` of the engine at the address `engine`. `name_of` returns a container's name by its id."""
        self._engine, self._name, self._name_of = engine.removeprefix(_UNIX), name, name_of
        self.saw_creation = False
        self._may_start = threading.Event()
        self._is_closed = False
        self._folder = HeldFolder(_PREFIX, _MODE)
        self.address = f"{_UNIX}{self._folder.path}/{_SOCKET}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address.removeprefix(_UNIX))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self) -> None:
        """Let requests to start the container pass."""
        self._may_start.set()

    def close(self) -> None:
        """Accept no more connections, and refuse the requests to start the container that still wait."""
        self._is_closed = not self._may_start.is_set()
        self._may_start.set()
        self._listener.close()
        self._folder.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the gate was closed
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
        """Return True if the request in `piece` may pass. A request to start the container first waits for `open` or `close`."""
        if creation := _CREATE.match(piece):
            if parse_qs(creation[1].decode(errors="replace")).get("name") == [self._name]:
                self.saw_creation = True
        elif (start := _START.match(piece)) and self._name_of(start[1].decode(errors="replace")) == self._name:
            self._may_start.wait()
            return not self._is_closed
        return True


def can_gate(engine: str) -> bool:
    """Return True if a gate can replace the engine at the address `engine`, which must name a Unix socket."""
    return engine.startswith(_UNIX)


def remove_stale_gates() -> list[str]:
    """Remove the folders of gates that killed tracers of this user left. Return the folders' names."""
    return remove_stale(_PREFIX, _MODE, _SOCKET, lambda _, status: stat.S_ISSOCK(status.st_mode))


def _piece(launcher: socket.socket) -> bytes:
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
