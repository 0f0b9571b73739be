"""Addresses of connected sockets, as /proc shows them."""

import os
import socket

import pytest

from iotwin.trace_store.raw.records import read_names
from iotwin.tracing_tools.recorder.socket_addresses import SocketAddresses, address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0100007F:1F90", "127.0.0.1:8080"),
        ("0109090A:0FA0", "10.9.9.1:4000"),
        ("00000000000000000000000001000000:0016", "[::1]:22"),
        ("0000000000000000FFFF00000109090A:0FA0", "10.9.9.1:4000"),
        ("B80D0120000000000000000001000000:0001", "[2001:db8::1]:1"),
    ],
)
def test_addresses_are_written_as_usual(text, expected):
    assert address(text) == expected


def test_each_connection_is_named_once():
    found = SocketAddresses()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            content = found.names([os.getpid(), 1 << 22])
            names = {record.inode: record for record in read_names(content)}
            for end in (one, other):
                status = os.fstat(end.fileno())
                record = names[status.st_ino]
                own, peer = ("{}:{}".format(*name) for name in (end.getsockname(), end.getpeername()))
                assert record.text.decode() == f"socket:[{status.st_ino}] {own}->{peer}"
                assert record.device == os.major(status.st_dev) << 20 | os.minor(status.st_dev)
            assert not {record.inode for record in read_names(found.names([os.getpid()]))} & names.keys()
    assert found.names([1 << 22]) == b""
