"""The ranks of a script that torchrun or iotwin.workloads.launch started: they exchange values when they save and resume.

They use a separate store of torch.distributed, so that iotwin makes no calls in the script's own process groups.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.ranks import from_environment, launched_by_torchrun
from iotwin.common.untrusted_files import decode_foreign
from iotwin.workloads.common.rank_zero_last import LONGEST_WAIT, wait_for_all

_KEPT = 1000  # number of exchanges after which the store is emptied, since it grows with each batch
_ENDED = b"ended"  # not a value in JSON
_LOST = "another rank of the script has ended, or does not come to this batch"
_Result = TypeVar("_Result")


class ScriptRanks:
    """This process's rank, and how many ranks there are. `store`: where they exchange values, None for a single rank."""

    def __init__(self, rank: int = 0, world_size: int = 1, store: Any = None) -> None:
        self.rank, self.world_size, self._store = rank, world_size, store
        self._exchanges = 0
        self._put_keys: list[str] = []  # those in the store, in order

    @classmethod
    def joined(cls) -> Self:
        """Return the ranks that the environment names, connected with one another. Blocks until rank 0 listens.

        Raises UsageError if the environment names no rank or no address, and IotwinError if rank 0 cannot be reached.
        """
        launched = launched_by_torchrun()
        if launched.size == 1:
            return cls()
        from torch import distributed

        address = "env://"
        try:
            store, rank, size = next(distributed.rendezvous(address, timeout=LONGEST_WAIT))
        except ValueError as error:
            raise UsageError(f"{error}; start the ranks with torchrun or iotwin.workloads.launch") from None
        except RuntimeError as error:
            raise IotwinError(f"the ranks do not find one another: {_first_line(error)}") from None
        # When torchrun restarts the ranks, the store still holds the values of the earlier ranks.
        attempt = from_environment("TORCHELASTIC_RESTART_COUNT", 0)
        return cls(rank, size, distributed.PrefixStore(f"iotwin.{attempt}", store))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """After the script's success, let ranks that expect another exchange fail, and on rank 0 wait until all have ended."""
        if self.world_size > 1 and (error is None or (isinstance(error, SystemExit) and not error.code)):
            self._store.set(f"{self._exchanges}/{self.rank}", _ENDED)
            wait_for_all(self._store, "left", self.rank, self.world_size)

    def from_first(self, value: Any) -> Any:
        """Return rank 0's `value`, of numbers and texts. Every rank must call this method. It blocks until rank 0 has done so."""
        if self.world_size == 1:
            return value
        if self._exchanges % _KEPT == _KEPT - 1:  # the same exchange on all ranks
            self.sum()
        if self.rank == 0:
            self._put(value)
        self._exchanges += 1
        return value if self.rank == 0 else self._got(0)

    def sum(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks. Blocks until all ranks have called this method."""
        if self.world_size == 1:
            return list(values)
        self._put(values)
        self._exchanges += 1
        found = [self._got(rank) for rank in range(self.world_size)]
        # All ranks have reached this exchange, so each has read the values of the exchange before.
        for key in self._put_keys[:-1]:
            _reached(partial(self._store.delete_key, key))
        del self._put_keys[:-1]
        return [sum(each) for each in zip(*found, strict=True)]

    def _put(self, value: Any) -> None:
        self._put_keys.append(f"{self._exchanges}/{self.rank}")
        _reached(lambda: self._store.set(self._put_keys[-1], msgspec.json.encode(value)))

    def _got(self, rank: int) -> Any:
        """Return the value that `rank` has put into the latest exchange."""
        found = _reached(lambda: self._store.get(f"{self._exchanges - 1}/{rank}"))
        if found == _ENDED:
            raise IotwinError(_LOST)
        return decode_foreign(found, object, "what another rank sends")


def path_of_rank(path: Path, rank: int) -> Path:
    """Return the name of a file of a rank: rank 0 has `path` itself."""
    return path.with_name(f"{path.name}.rank-{rank}") if rank else path


def _reached(call: Callable[[], _Result]) -> _Result:
    try:
        return call()
    except RuntimeError as error:
        raise IotwinError(f"{_LOST}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
