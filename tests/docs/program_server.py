"""Runs the programs of examples in forks of one process that has imported their packages, but nothing of iotwin.

``python -P -m tests.docs.program_server SOCKET PACKAGE...`` prints a line once it listens. `CLIENT` is a program that hands its
command, environment and standard streams over to it.
"""

import gc
import importlib
import marshal
import os
import signal
import socket
import sys
from pathlib import Path

PACKAGES = (
    "torch._dynamo", "pandas", "pyarrow.compute", "pyarrow.dataset", "numba", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "rich.table",
)  # fmt: skip
_MOST_BYTES = 1 << 17

CLIENT = """
import marshal, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(sys.argv[1])
socket.send_fds(server, [marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))], [0, 1, 2])
status = server.recv(1)
os._exit(status[0] if status else 137)
"""


def _serve(path: str) -> socket.socket:
    """Return the connection to a client, in a process for that client alone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(100)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process of a client remains as a zombie
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return connection
            connection.close()


def main(path: str, packages: list[str]) -> None:
    """Import the packages, and serve until somebody ends this process."""
    for name in packages:
        importlib.import_module(name)
    gc.freeze()
    connection = _serve(path)
    content, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
    words, environment, folder = marshal.loads(content)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    # What this program starts in turn is started as usual: a tracer must find its job among its own children.
    os.environ.update(environment | {"PATH": environment["PATH"].removeprefix(f"{Path(path).parent}:")})
    os.chdir(folder)
    sys.path.insert(0, folder)
    status = 70
    try:
        from tests.forked_programs import run_python

        status = run_python(words)
    finally:
        connection.send(bytes([status & 0xFF]))
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
