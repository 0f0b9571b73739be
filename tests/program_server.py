"""Runs programs in Python in forks of one process that has imported their packages, since importing PyTorch takes seconds.

``python -P -m tests.program_server SOCKET PACKAGE...`` prints a line once it listens. Each connection hands over the words after
`python`, the environment, the folder, whether the program begins a session, whether the programs that it starts run in forks of
it, and three standard streams. The answers are the program's pid, and its exit status unless a signal ends it. The program is an
orphan: it becomes a child of the nearest "subreaper" among the server's ancestors. `CLIENT` is a program that hands over its own
command.
"""

import gc
import importlib
import marshal
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen

_MOST_BYTES = 1 << 17

CLIENT = """
import marshal, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(sys.argv[1])
socket.send_fds(server, [marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd(), False, False))], [0, 1, 2])
server.recv(16)
status = server.recv(1)
os._exit(status[0] if status else 137)
"""


@contextmanager
def program_server(folder: Path, packages: Sequence[str], environment: Mapping[str, str]) -> Iterator[Path]:
    """Run a server that has imported the packages; its socket's path."""
    path = folder / "socket"
    command = [sys.executable, "-P", "-m", "tests.program_server", str(path), *packages]
    root = str(Path(__file__).parent.parent)  # where this module is found, whatever the folder and the environment
    with Popen(command, env={**environment, "PYTHONPATH": root}, stdout=PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield path
        server.kill()


def start_program(
    server: Path, words: Sequence[str], environment: Mapping[str, str], folder: str, session: bool, streams: Sequence[int]
) -> int:
    """Start ``python WORD...`` in a fork of the server, and return its pid."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(server))
        socket.send_fds(connection, [marshal.dumps((list(words), dict(environment), folder, session, True))], streams)
        return int(connection.recv(16))


def _serve(path: str) -> socket.socket:
    """Return the connection to a client, in a process for that client alone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(100)
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            begun, begin = os.pipe()
            between = os.fork()
            if between == 0:
                if os.fork():
                    os._exit(0)
                os.read(begun, 1)  # until its parent has ended, and it has the parent that it keeps
                os.close(begun)
                os.close(begin)
                return connection
            os.waitpid(between, 0)
            os.write(begin, b"1")
            for descriptor in (begun, begin, connection.detach()):
                os.close(descriptor)


def main(path: str, packages: list[str]) -> None:
    """Import the packages, and serve until somebody ends this process."""
    for name in packages:
        importlib.import_module(name)
    gc.freeze()
    connection = _serve(path)
    content, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
    words, environment, folder, session, forks = marshal.loads(content)
    if session:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # What an example starts in turn is started as usual: a tracer must find its job among its own children.
    environment["PATH"] = environment["PATH"].removeprefix(f"{Path(path).parent}:")
    status = 70
    try:
        from tests.forked_programs import run_python

        connection.send(str(os.getpid()).encode())
        status = run_python(words, environment, folder, forks)
    finally:
        with suppress(OSError):  # a client that knows the pid does not wait
            connection.send(bytes([status & 0xFF]), socket.MSG_NOSIGNAL)
        os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1], sys.argv[2:])
