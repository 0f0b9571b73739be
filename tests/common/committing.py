"""A program that commits steps to a store, two ranks as threads; what it has returned from it says by looking for a file.

python -m tests.common.committing STORE FIRST LAST [WORLD_SIZE] [COPIES]

Each checkpoint has COPIES times the tensors of SIZES.
"""

import os
import sys
import threading
from pathlib import Path

from iotwin.common import tensor_file
from iotwin.common.commit import Store
from iotwin.common.retention import Retention
from tests.common.stores import manifest, tensors

SIZES = (40, 0, 7)
BUFFER_BYTES = 512  # so that small states take many writes past the page cache, as large ones do


class ThreadRanks:
    """Ranks as threads of one process."""

    def __init__(self, world_size):
        self._barrier, self._values = threading.Barrier(world_size), [()] * world_size
        self.world_size = world_size

    def of(self, rank):
        ranks = self

        class Rank:
            world_size = ranks.world_size

            def sum(self, *values):
                ranks._values[rank] = values
                ranks._barrier.wait()
                total = [sum(each) for each in zip(*ranks._values, strict=True)]
                ranks._barrier.wait()
                return total

        instance = Rank()
        instance.rank = rank
        return instance


def run(directory, first, last, world_size=1, copies=1):
    tensor_file._BUFFER_BYTES = BUFFER_BYTES
    ranks = ThreadRanks(world_size)

    def one(rank):
        with Store(directory, Retention(1), ranks.of(rank)) as store:
            for step in range(first, last + 1):
                store.commit(manifest(step, world_size), tensors(step, rank, SIZES * copies), {"step": step})
                if rank == 0:
                    os.access(f"/committed-{step}", os.F_OK)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    run(Path(sys.argv[1]), *map(int, sys.argv[2:]))
