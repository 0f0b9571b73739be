"""Worker processes that take units of work one at a time and report bytes as they go.

Each worker has its own pipe: when the parent dies, even by SIGKILL, the worker reads end-of-file and exits.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from datagen.files import Piece
from tracing_tools.trace.errors import IotwinError

_REPORT_EVERY_BYTES = 8 << 20

# Writes one unit; the second argument is called with every write's bytes.
UnitWriter = Callable[[int, Callable[[int], None]], list[Piece]]


def run_units(
    writer: UnitWriter, units: Sequence[int], workers: int, advance: Callable[[float], None]
) -> Iterator[tuple[int, list[Piece]]]:
    """Yield (unit, its pieces) as units finish, from at most `workers` processes; `writer` must be picklable.

    Raises IotwinError with the worker's message when a unit fails. Leaving the iterator ends the workers.
    """
    workers = min(workers, len(units))
    if workers <= 1:
        for unit in units:
            yield unit, writer(unit, advance)
        return
    context = multiprocessing.get_context("spawn")
    team: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(writer, theirs), daemon=True)
            process.start()
            theirs.close()
            team[ours] = process
        yield from _dispatch(list(team), iter(units), advance)
    finally:
        for ours, process in team.items():
            ours.close()
            process.terminate()
        for process in team.values():
            process.join()


def _dispatch(
    pipes: list[Connection], units: Iterator[int], advance: Callable[[float], None]
) -> Iterator[tuple[int, list[Piece]]]:
    busy = {pipe for pipe in pipes if _send_next(pipe, units)}
    while busy:
        for pipe in cast(list[Connection], wait(list(busy))):
            try:
                answer = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise IotwinError(
                    "a worker process was killed, perhaps for lack of memory; run the command again to go on"
                ) from None
            match answer:
                case float() as size_bytes:
                    advance(size_bytes)
                case str() as message:
                    raise IotwinError(message)
                case (int() as unit, list() as pieces):
                    if not _send_next(pipe, units):
                        busy.discard(pipe)
                    yield unit, pieces


def _send_next(pipe: Connection, units: Iterator[int]) -> bool:
    unit = next(units, None)
    if unit is not None:
        pipe.send(unit)
    return unit is not None


def _work(writer: UnitWriter, pipe: Connection) -> None:
    """Write units until the pipe closes. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pending = 0

    def written(size_bytes: int) -> None:
        nonlocal pending
        pending += size_bytes
        if pending >= _REPORT_EVERY_BYTES:
            pipe.send(float(pending))
            pending = 0

    try:
        while True:
            unit = pipe.recv()
            pieces = writer(unit, written)
            pipe.send(float(pending))
            pending = 0
            pipe.send((unit, pieces))
    except (EOFError, BrokenPipeError):
        return
    except (OSError, IotwinError) as error:
        pipe.send(_one_line(error))


def _one_line(error: OSError | IotwinError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)
