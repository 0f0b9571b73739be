"""What is found at lines of a script while it runs, also by processes that it forks, such as workers of loaders."""

import contextlib
import os

import msgspec


class Findings:
    """Unique findings of this process and of those that it forks: (what, file, line).

    They are in an anonymous file, which forked processes share. Processes that are spawned do not.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("detrain-findings")
        self._found: set[tuple[str, str, int]] = set()

    def add(self, what: str, file: str, line: int) -> None:
        """Add a finding, unless this process has added it before."""
        finding = (what, file, line)
        if finding in self._found:
            return
        self._found.add(finding)
        # A script that closes all descriptors, as daemons do, must not fail because of this one.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, msgspec.json.encode(finding) + b"\n")

    def all(self) -> list[tuple[str, str, int]]:
        """Return the findings of all these processes, each once, sorted by file and line."""
        found = set(self._found)
        with contextlib.suppress(OSError):
            content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
            found |= {msgspec.json.decode(line, type=tuple[str, str, int]) for line in content.splitlines()}
        return sorted(found, key=lambda finding: (finding[1], finding[2], finding[0]))
