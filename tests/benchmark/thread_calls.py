"""The calls on files that each thread of an emulated run makes, recorded by strace."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmark.strace import Call, strace

_CALLS = "openat,read,readv,pread64,preadv,write,writev,pwrite64,fsync,close,rename,unlink,ftruncate,mmap"
_PROGRAM = """
import sys
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import load
run_workload(load(sys.argv[1], ["++twin.clock=" + sys.argv[2]]), EmulationOptions(ranks=int(sys.argv[3]), one_of_several=True))
"""
ThreadCalls = tuple[tuple[str, str, int | None], ...]  # name, path, requested bytes


def calls_by_thread(twin: Path, clock: str, ranks: int, data: Path, checkpoints: Path, folder: Path) -> list[ThreadCalls]:
    """Run the twin's YAML, and return the calls on files of data and checkpoints of each thread that made any, sorted.

    The checkpoints of the run before are removed, and `folder` holds what strace writes. The emulator's own lists of the files
    that it wrote are left out: whether a rank finds the list of another is a race.
    """
    shutil.rmtree(checkpoints, ignore_errors=True)
    done = strace([sys.executable, "-c", _PROGRAM, str(twin), clock, str(ranks)], _CALLS, folder)
    inside = (f"{data}/", f"{checkpoints}/")
    found = (_named(calls, inside) for calls in done)
    return sorted(each for each in found if each)


def _named(calls: Sequence[Call], inside: tuple[str, ...]) -> ThreadCalls:
    def ours(call: Call) -> str:
        return next((path for path in call.paths if path.startswith(inside) and "/iotwin-emulated" not in path), "")

    return tuple((call.name, ours(call), call.requested) for call in calls if ours(call))
