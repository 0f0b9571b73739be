"""The processes and threads of a recording, numbered."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """The processes, those that do something and their parents, by number: `parents` of each and `begin_ns`, `end_ns`; and the
    threads: `process` and `tid` of each."""

    pids: list[int]
    parents: list[int]
    begin_ns: list[int]
    end_ns: list[int]
    process: list[int]
    tid: list[int]

    def main(self, process: int) -> int:
        """Return the number of a process's main thread."""
        return int(np.searchsorted(self.process, process))
