"""Block tracing that saw no request, and clients of the viewer that are no browsers."""

import re
import socket

import pyarrow.parquet as pq
import pytest

from iotwin.trace_store import schema
from iotwin.trace_store.writer import write_table
from iotwin.trace_visuals.report import view
from iotwin.trace_visuals.report.view import ReportServer
from tests.conftest import PATIENCE_S
from tests.processes import call
from tests.synthetic import Job, write_job


def test_block_tracing_without_a_request_is_reported(tmp_path):
    """The normal case of a job that is served from the page cache."""
    path = write_job(tmp_path / "t", Job(files=4, epochs=1, file_bytes=1 << 20))
    write_table(path, "block.parquet", schema.BLOCK, schema.BLOCK.empty_table())
    for arguments in (
        ["report", path, "-o", tmp_path / "r.html"],
        ["info", path],
        ["plot", "timeline", path, "-o", tmp_path / "t.png"],
    ):
        result = call(*arguments)
        assert result.returncode == 0, result.stderr
    with ReportServer([path]):
        pass
    assert pq.read_table(path / "block.parquet").num_rows == 0


@pytest.fixture
def server(tmp_path):
    with ReportServer([write_job(tmp_path / "t", Job(files=4, epochs=1, file_bytes=1 << 20))]) as running:
        yield running


def _ask(server, line: bytes) -> bytes:
    port = int(re.search(r":(\d+)/", server.url)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(line)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        return answer


def test_an_address_that_is_none_is_not_found(server, capfd):
    assert _ask(server, b"GET http://[::1 HTTP/1.0\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.0 404")
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_say_nothing_take_few_threads_and_are_left(server, monkeypatch):
    import threading
    import time

    port = int(re.search(r":(\d+)/", server.url)[1])
    before = threading.active_count()
    clients = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(100)]
    deadline = time.monotonic() + PATIENCE_S
    while threading.active_count() < before + view._MOST_CONNECTIONS and time.monotonic() < deadline:
        time.sleep(0.01)
    for client in clients[:50]:
        client.close()
    assert threading.active_count() <= before + view._MOST_CONNECTIONS
    for client in clients:
        client.close()


def _clients(server, count: int) -> list[socket.socket]:
    port = int(re.search(r":(\d+)/", server.url)[1])
    return [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(count)]


def test_clients_that_never_complete_a_request_do_not_lock_the_owner_out(server):
    clients = _clients(server, view._MOST_CONNECTIONS)
    for client in clients:
        client.sendall(b"G")
    target = server.url.split("/", 3)[3].encode()
    host = server.url.split("/")[2].encode()
    for _ in range(3):
        assert _ask(server, b"GET /%b HTTP/1.0\r\nHost: %b\r\n\r\n" % (target, host)).startswith(b"HTTP/1.0 200")
    for client in clients:
        client.close()


def test_a_request_that_arrives_byte_by_byte_has_one_deadline(server, monkeypatch):
    """Each byte comes long before the connection counts as idle."""
    monkeypatch.setattr(view, "_REQUEST_S", 0.3)
    [client] = _clients(server, 1)
    client.settimeout(0.05)
    closed = False
    for _ in range(int(PATIENCE_S / 0.05)):
        try:
            client.sendall(b"G")
            closed = client.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            closed = True
        if closed:
            break
    assert closed
    client.close()


def test_answers_do_not_name_the_version_of_python(server):
    for request in (b"GET / HTTP/1.0\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n", b"GET http://[::1 HTTP/1.0\r\n\r\n"):
        answer = _ask(server, request)
        assert b"Server: iotwin\r\n" in answer and b"Python" not in answer


def test_an_idle_client_is_left_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "_IDLE_S", 0.2)
    with ReportServer([write_job(tmp_path / "t", Job(files=4, epochs=1, file_bytes=1 << 20))]) as running:
        assert _ask(running, b"GET /") == b""
