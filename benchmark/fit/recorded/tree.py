"""The processes and threads of a recording, numbered."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """The processes of a recording and their threads, by number.

    * of processes: `parents`, `begin_ns` and `end_ns`
    * of threads: `process` and `tid`
    """

    pids: list[int]
    parents: list[int]
    begin_ns: list[int]
    end_ns: list[int]
    process: list[int]
    tid: list[int]

    def main(self, process: int) -> int:
        """Return the number of a process's main thread."""
        return int(np.searchsorted(self.process, process))
