"""Name the job's connected TCP sockets by their addresses. If both hosts are traced, the addresses match a connection's ends."""

import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from iotwin.trace_store.raw.records import NAME_INHERITED, NameRecord, pack_name

_ESTABLISHED = "01"  # TCP_ESTABLISHED of include/net/tcp_states.h
_MOST_PIDS = 4096  # most processes whose network namespaces are read


class SocketAddresses:
    """Finds the connected sockets that it has not named before."""

    def __init__(self) -> None:
        with socket.socket() as one:
            status = os.fstat(one.fileno())
        self._mode, self._device = status.st_mode, os.major(status.st_dev) << 20 | os.minor(status.st_dev)
        self._named: set[int] = set()

    def names(self, pids: Iterable[int]) -> bytes:
        """Return name records of the new connected TCP sockets in the network namespaces of the processes `pids`."""
        content = b""
        for pid in self._one_per_namespace(pids):
            for inode, own, peer in _connections(Path(f"/proc/{pid}/net")):
                if inode and inode not in self._named:
                    self._named.add(inode)
                    text = f"socket:[{inode}] {own}->{peer}".encode()
                    content += pack_name(
                        NameRecord(0, NAME_INHERITED, pid, pid, inode=inode, device=self._device, mode=self._mode, text=text)
                    )
        return content

    @staticmethod
    def _one_per_namespace(pids: Iterable[int]) -> list[int]:
        found: dict[str, int] = {}
        for pid in list(pids)[:_MOST_PIDS]:
            try:
                found.setdefault(str(Path(f"/proc/{pid}/ns/net").readlink()), pid)
            except OSError:
                continue  # the process has ended
        return list(found.values())


def _connections(folder: Path) -> Iterable[tuple[int, str, str]]:
    """Yield (inode, own address, peer's address) of each connection that the files tcp and tcp6 in `folder` list."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (folder / name).read_text().splitlines()[1:]
        except OSError:
            continue  # the process has ended, or the kernel has no IPv6
        for line in lines:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                yield int(fields[9]), address(fields[1]), address(fields[2])


def address(text: str) -> str:
    """Return an address of /proc/net/tcp (hexadecimal 32-bit words in the machine's byte order) in its usual form."""
    host, port = text.split(":")
    content = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    found = ipaddress.ip_address(content)
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    return f"[{found}]:{int(port, 16)}" if found.version == 6 else f"{found}:{int(port, 16)}"
