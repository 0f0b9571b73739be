"""Sample the machine's disks and CPUs once a second during a run, in the format of `iostat -o JSON`."""

import multiprocessing
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from iotwin.common.files import write_json

_INTERVAL_S = 1.0
_MIB = 1 << 20
_fork = multiprocessing.get_context("fork")


@contextmanager
def sampling(path: Path, devices: list[str]) -> Iterator[None]:
    """Sample `devices` (such as sda; all if empty) within the block, then write the samples to `path`.

    If the block raises, nothing is written.
    """
    ours, theirs = _fork.Pipe()
    sampler = _fork.Process(target=_sample, args=(os.getpid(), theirs, devices), daemon=True)
    sampler.start()
    theirs.close()
    try:
        yield
        ours.send(None)
        write_json(path, _document(ours.recv()))
    finally:
        sampler.kill()
        sampler.join()
        ours.close()


def _sample(parent_pid: int, pipe: Connection, devices: list[str]) -> None:
    """Collect a row of statistics a second until the parent process requests the rows. Runs in a separate process."""
    from iotwin.common.processes.children import become_child
    from iotwin.tracing_tools.samplers.machine import MachineSampler

    become_child("iotwin-iostat", parent_pid)
    machine = MachineSampler(lambda: None)
    statistics: list[dict[str, Any]] = []
    due = time.monotonic()
    done = False
    with suppress(EOFError):
        while not done:
            due += _INTERVAL_S
            done = pipe.poll(max(0.0, due - time.monotonic()))
            statistics.append(_statistics(list(machine.sample()), devices))
        pipe.send(statistics)


def _statistics(samples: list[tuple[str, dict[str, Any]]], devices: list[str]) -> dict[str, Any]:
    cpu = next(row for kind, row in samples if kind == "cpu")
    disks = [row for kind, row in samples if kind == "disk" and (not devices or row["device"] in devices)]
    shares = {name: round(100.0 * cpu[key], 2) for name, key in (("user", "user"), ("system", "system"), ("iowait", "iowait"))}
    return {
        "timestamp": datetime.now().astimezone().isoformat(),
        "avg-cpu": {**shares, "nice": 0.0, "steal": 0.0, "idle": round(100.0 * cpu["idle"], 2)},
        "disk": [_disk(row) for row in disks],
    }


def _disk(row: dict[str, Any]) -> dict[str, Any]:
    seconds = row["interval_ns"] / 1e9
    rates = {
        "r/s": row["reads"],
        "w/s": row["writes"],
        "rMB/s": row["read_bytes"] / _MIB,
        "wMB/s": row["written_bytes"] / _MIB,
    }
    rounded = {name: round(value / seconds, 2) for name, value in rates.items()}
    return {"disk_device": row["device"], **rounded, "util": round(100.0 * row["busy"], 2)}


def _document(statistics: list[dict[str, Any]]) -> dict[str, Any]:
    host = {
        "nodename": platform.node(),
        "sysname": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "number-of-cpus": os.cpu_count(),
        "statistics": statistics,
    }
    return {"sysstat": {"hosts": [host]}}
