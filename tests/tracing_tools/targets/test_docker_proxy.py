"""The gate before a Docker Engine, with a socket of the test's own in the engine's place."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotwin.tracing_tools.targets.docker_proxy import EngineGate, can_gate, remove_stale_gates

OURS, OTHER = b"POST /v1.43/containers/abc/start HTTP/1.1\r\n\r\n", b"POST /v1.43/containers/def/start HTTP/1.1\r\n\r\n"
NAMES = {"abc": "ours", "def": "other"}


class Engine:
    """Answers each piece with `got:` and the piece."""

    def __init__(self, path: Path) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while piece := connection.recv(1 << 20):
                self.asked.append(piece)
                connection.sendall(b"got:" + piece)
            connection.sendall(b"end")


@pytest.fixture
def engine(tmp_path) -> Engine:
    return Engine(tmp_path / "engine.sock")


@pytest.fixture
def gate(tmp_path, engine) -> Iterator[EngineGate]:
    made = EngineGate(f"unix://{tmp_path}/engine.sock", "ours", NAMES.get)
    yield made
    made.close()


def ask(gate: EngineGate) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(gate.address.removeprefix("unix://"))
    client.settimeout(20)
    return client


def answer(client: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size and (piece := client.recv(1 << 16)):
        content += piece
    return content


def says_nothing(client: socket.socket) -> bool:
    client.settimeout(0.3)
    try:
        client.recv(1)
    except TimeoutError:
        client.settimeout(20)
        return True
    return False


def test_a_start_waits_until_the_gate_is_open(gate, engine):
    client = ask(gate)
    client.sendall(OURS)
    assert says_nothing(client) and not engine.asked
    gate.open()
    assert answer(client, 4 + len(OURS)) == b"got:" + OURS


def test_what_is_not_our_start_passes(gate, engine):
    ping, long = b"GET /_ping HTTP/1.1\r\n\r\n", b"POST /" + b"x" * 9000
    for request in (OTHER, OURS.replace(b"/start", b"/wait"), ping, bytes(200_000), long):
        client = ask(gate)
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        assert answer(client, 1 << 30).replace(b"got:", b"") == request + b"end"


def test_a_request_in_pieces_is_understood_and_the_connection_goes_on(gate, engine):
    client = ask(gate)
    client.sendall(b"GET /info HTTP/1.1\r\n\r\n")
    answer(client, 26)
    client.sendall(OURS[:10])
    assert says_nothing(client)
    client.sendall(OURS[10:])
    assert says_nothing(client) and len(engine.asked) == 1
    gate.open()
    assert answer(client, 4 + len(OURS)) == b"got:" + OURS


@pytest.mark.parametrize(("query", "seen"), [(b"name=ours", True), (b"platform=&name=ours", True), (b"name=other", False)])
def test_who_creates_the_container_here_is_seen(gate, query, seen):
    client = ask(gate)
    request = b"POST /v1.43/containers/create?" + query + b" HTTP/1.1\r\n\r\n{}"
    client.sendall(request)
    assert answer(client, 4 + len(request)) == b"got:" + request
    assert gate.saw_creation is seen


def test_a_closed_gate_lets_no_start_through(gate, engine):
    client = ask(gate)
    client.sendall(OURS)
    assert says_nothing(client)
    directory = Path(gate.address.removeprefix("unix://")).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    gate.close()
    assert client.recv(1) == b"" or engine.asked == []
    assert engine.asked == [] and not directory.exists()


def test_only_an_engine_of_this_machine_has_a_gate():
    assert can_gate("unix:///var/run/docker.sock") and not can_gate("tcp://10.0.0.1:2375") and not can_gate("ssh://host")


@pytest.fixture
def temporary(monkeypatch) -> Iterator[Path]:
    """The directory for temporary files; a short name, as addresses of sockets have room for some hundred bytes."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def _left_by_a_kill(temporary: Path) -> Path:
    code = (
        "import os; from iotwin.tracing_tools.targets.docker_proxy import EngineGate\n"
        "EngineGate('unix:///nowhere', 'x', lambda given: None); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    assert [path.name for path in left.iterdir()] == ["docker.sock"]
    return left


def test_what_a_killed_tracer_left_is_removed_and_a_living_one_s_is_not(temporary):
    left = _left_by_a_kill(temporary)
    living = EngineGate(f"unix://{temporary}/engine.sock", "ours", NAMES.get)
    assert remove_stale_gates() == [left.name]
    assert not left.exists() and Path(living.address.removeprefix("unix://")).is_socket()
    living.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", ["mode", "more", "file", "link", "other"])
def test_what_is_not_a_gate_s_stays(temporary, kind):
    left = _left_by_a_kill(temporary)
    if kind == "mode":
        left.chmod(0o755)
    elif kind == "more":
        (left / "precious.txt").write_text("somebody's")
    elif kind == "file":
        (left / "docker.sock").unlink()
        (left / "docker.sock").write_text("somebody's")
    elif kind == "link":
        left.rename(temporary / "elsewhere")
        left.symlink_to(temporary / "elsewhere")
    elif os.geteuid() == 0:
        os.chown(left, 65534, 65534)
    else:
        pytest.skip("needs root, to give a directory to another user")
    before = sorted(path.relative_to(temporary) for path in temporary.rglob("*"))
    assert remove_stale_gates() == []
    assert sorted(path.relative_to(temporary) for path in temporary.rglob("*")) == before
