"""``python -m iotwin.loops.experiments.host_check FOLDER``: print, as JSON, what `iotwin run` has to know of this host.

`iotwin run` calls this program by ssh on each of its hosts.
"""

import os
import re
import sys
from pathlib import Path

import msgspec

from iotwin import __version__
from iotwin.common.ranks import claimed_ports


class KnownHost(msgspec.Struct):
    """A host that was reached by ssh."""

    name: str  # as the host itself calls itself
    address: str  # by which ssh reached it
    port: int  # a free one
    gpus: int
    version: str  # of iotwin
    sees_folder: bool


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, by their device files."""
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").iterdir())


def main(folder: str) -> None:
    """Print the KnownHost of this machine. FOLDER was made by another machine, for this one to see."""
    name = os.uname().nodename
    # ssh(1): the client's address and port, and the server's.
    address = [*os.environ.get("SSH_CONNECTION", "").split(), *[name] * 3][2]
    with claimed_ports(1) as port:
        print(msgspec.json.encode(KnownHost(name, address, port, count_gpus(), __version__, Path(folder).is_dir())).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
