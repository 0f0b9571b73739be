"""Run units of work on a pool of workers, which report the bytes that they write.

The first worker is a thread of the calling process; the others are child processes. The thread writes while the processes start.
Each worker has a separate pipe to the caller. If the caller dies, even by SIGKILL, the pipes close and the processes exit.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import safe_path
from iotwin.common.signals import interrupts_held
from iotwin.datagen.data_set_files import Piece

_REPORT_EVERY_BYTES = 1 << 20  # bytes between two reports; a report also fails if the main process is dead, which ends the worker

# Function that writes a unit of work and returns its pieces. Arguments: the unit's index, and a function that the writer calls
# with the number of bytes of every write.
UnitWriter = Callable[[int, Callable[[int], None]], list[Piece]]


def run_units(
    writer: UnitWriter, units: Sequence[int], workers: int, advance: Callable[[float], None]
) -> Iterator[tuple[int, list[Piece]]]:
    """Write `units` by `writer`, which must be picklable, on at most `workers` workers. Yield (unit, pieces) as units finish.

    Raises IotwinError with the worker's message if a unit fails. Closing the iterator ends the workers.
    """
    workers = min(workers, len(units))
    if workers <= 1:
        for unit in units:
            yield unit, writer(unit, advance)
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    thread = threading.Thread(target=_work, args=(writer, theirs), daemon=True)
    team: dict[Connection, SpawnProcess | threading.Thread] = {ours: thread}
    thread.start()
    try:
        for _ in range(workers - 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work_alone, args=(writer, theirs), daemon=True)
            # SIGINT would print a traceback in a child that is starting, so it is blocked until the child has started.
            # multiprocessing's resource tracker would unblock it, so the tracker starts first.
            with safe_path():
                resource_tracker.ensure_running()
                with interrupts_held((signal.SIGINT,)):
                    process.start()
            theirs.close()
            team[ours] = process
        yield from _dispatch(list(team), units, advance)
    finally:
        for ours, worker in team.items():
            ours.close()
            if isinstance(worker, SpawnProcess):
                worker.terminate()
        for worker in team.values():
            worker.join()


def _dispatch(
    pipes: list[Connection], units: Sequence[int], advance: Callable[[float], None]
) -> Iterator[tuple[int, list[Piece]]]:
    """Assign units to workers whenever a worker is ready, until all units are written. Yield (unit, pieces) of each unit."""
    left, unanswered = iter(units), len(units)
    while unanswered:
        for pipe in cast(list[Connection], wait(pipes)):
            try:
                answer = pipe.recv()
                if answer is None and (unit := next(left, None)) is not None:
                    pipe.send(unit)
            except (EOFError, ConnectionError):
                raise IotwinError(
                    "a worker process was killed, perhaps for lack of memory; run the command again to go on"
                ) from None
            match answer:
                case float() as size_bytes:
                    advance(size_bytes)
                case str() as message:
                    raise IotwinError(message)
                case (int() as unit, list() as pieces):
                    unanswered -= 1
                    yield unit, pieces


def _work_alone(writer: UnitWriter, pipe: Connection) -> None:
    """Run a worker in a child process. It ignores Ctrl-C, since the parent process then ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work(writer, pipe)


def _work(writer: UnitWriter, pipe: Connection) -> None:
    pending = 0

    def written(size_bytes: int) -> None:
        nonlocal pending
        pending += size_bytes
        if pending >= _REPORT_EVERY_BYTES:
            pipe.send(float(pending))
            pending = 0

    try:
        while True:
            pipe.send(None)  # None: this worker is ready for a unit
            unit = pipe.recv()
            pieces = writer(unit, written)
            pipe.send(float(pending))
            pending = 0
            pipe.send((unit, pieces))
    except (EOFError, ConnectionError):  # the main process is gone
        return
    except (OSError, IotwinError) as error:
        pipe.send(_one_line(error))
    finally:
        pipe.close()


def _one_line(error: OSError | IotwinError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)
