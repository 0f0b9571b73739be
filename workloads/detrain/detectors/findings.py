"""Collects what detectors find at lines of a script, also in processes that the script forks, such as workers of loaders."""

import contextlib
import os

import msgspec


class Findings:
    """Findings of this process and of those that it forks, each once: (what was found, file, line).

    They are stored in an anonymous file, which forked processes share. Processes that are spawned do not share it.
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
        # The script may have closed all descriptors, as daemons do. It must not fail because this file is closed.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, msgspec.json.encode(finding) + b"\n")

    def all(self) -> list[tuple[str, str, int]]:
        """Return the findings of this and all forked processes, each once, sorted by file and line."""
        found = set(self._found)
        with contextlib.suppress(OSError):
            content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
            found |= {msgspec.json.decode(line, type=tuple[str, str, int]) for line in content.splitlines()}
        return sorted(found, key=lambda finding: (finding[1], finding[2], finding[0]))
