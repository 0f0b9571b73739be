"""Time and memory to compare ten million events with ten million, and to read a set of 64 hosts.

    python -m tests.perf.perf_tracesim [DIRECTORY]

The traces are of eight loaders that read 20 000 files in a fresh order each epoch: open, 48 reads of 256 KiB, close.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from iotwin.trace_store import schema
from iotwin.trace_store.hosts.make_set import make_set
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.writer import write_events, write_tables
from tests.perf.figures import Figure

_EPOCHS, _FILES, _READS, _LOADERS = 10, 20_000, 48, 8
_CALLS = _READS + 2
_READ_BYTES = 256 << 10
_CALL_NS = 110_000
_HOSTS = 64
# Opens a set and reads the first two million of its events; prints the time to open and the memory that both took.
_READ_SET = """
import json, resource, sys, time
from iotwin.trace_store.reader import Trace
list(zip(range(20), Trace(sys.argv[2]).events()))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, begin = peak(), time.perf_counter()
trace = Trace(sys.argv[1])
opened = time.perf_counter() - begin
list(zip(range(2_000_000 // (1 << 17)), trace.events()))
print(json.dumps([opened, peak() - before]))
"""


def _events(epoch: int, rng: np.random.Generator) -> pa.Table:
    """The calls of one epoch, in order of start."""
    visit = np.repeat(np.arange(_FILES), _CALLS)
    number = np.tile(np.arange(_CALLS), _FILES)
    turn = epoch * _FILES // _LOADERS + visit // _LOADERS
    start = (turn * (_CALLS + 2) + number) * _CALL_NS + rng.integers(0, 20_000, len(visit))
    order = np.argsort(start, kind="stable")
    reading = ((number > 0) & (number < _CALLS - 1))[order]
    names = np.array(["openat", "read", "close"])
    tid = 1000 + epoch * _LOADERS + visit[order] % _LOADERS
    columns = {
        "start_ns": start[order],
        "duration_ns": rng.integers(20_000, 90_000, len(visit)),
        "op": pa.array(names[np.where(reading, 1, np.where(number[order] == 0, 0, 2))]).dictionary_encode(),
        "pid": tid,
        "tid": tid,
        "file_id": rng.permutation(_FILES)[visit[order]],
        "fd": np.full(len(visit), 5),
        "offset": pa.array((number[order] - 1) * _READ_BYTES, mask=~reading),
        "requested": pa.array(np.full(len(visit), _READ_BYTES), mask=~reading),
        "result": np.where(reading, _READ_BYTES, 5),
        "flags": np.zeros(len(visit), dtype=int),
        "cpu": np.zeros(len(visit), dtype=int),
    }
    return pa.table([pa.array(columns[name]) for name in schema.EVENTS.names], names=schema.EVENTS.names).cast(schema.EVENTS)


def _tables(seed: int, epochs: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(seed)
    for epoch in range(epochs):
        yield _events(epoch, rng)


def write_loader_trace(path: Path, seed: int, epochs: int = _EPOCHS) -> None:
    """Write a trace of a million events an epoch."""
    epoch_ns = _FILES // _LOADERS * (_CALLS + 2) * _CALL_NS
    same = {"device": 1, "generation": 1, "size_bytes": _READS * _READ_BYTES, "kind": "dataset"}
    files = [{"file_id": i, "inode": i, "path": f"/data/case_{i}.npy", **same} for i in range(_FILES)]
    spans = [(epoch * epoch_ns, (epoch + 1) * epoch_ns - 1) for epoch in range(epochs)]
    phases = [{"phase": "epoch", "start_ns": start, "end_ns": end, "rank": 0} for start, end in spans]
    host = Host("synthetic", "", 2, 1 << 30, "x86_64")
    manifest = Manifest("complete", "synthetic", host, Target())
    manifest.events = write_events(path / "events.parquet", _tables(seed, epochs))
    write_tables(
        path,
        manifest,
        pa.Table.from_pylist(files, schema=schema.FILES),
        schema.PROCESSES.empty_table(),
        pa.Table.from_pylist(phases, schema=schema.PHASES),
    )


def _set_figures(trace: Path, directory: Path) -> Iterator[Figure]:
    """Yield the figures of a set whose hosts all have the same trace of ten million events."""
    hosts = [trace.with_name(f"host-{number}.trace") for number in range(_HOSTS)]
    for path in hosts:  # hard links: a set takes each path once
        shutil.copytree(trace, path, copy_function=os.link)
    make_set(directory, hosts)
    command = [sys.executable, "-c", _READ_SET, str(directory), str(trace)]
    opened, mib = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (copied,) = (path.stat().st_size for path in directory.iterdir())
    events = f"{_HOSTS} x {_EPOCHS * _FILES * _CALLS / 1e6:.0f} million events"
    yield Figure(f"open a set of {_HOSTS} hosts: s", opened, 3, detail=f"{events}; set.json has {copied:,} bytes")
    yield Figure(f"read a set of {_HOSTS} hosts, memory a host: MiB", mib / _HOSTS, 10, detail="beyond that of reading one trace")


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else None) as scratch:
        traces = [Path(scratch) / "a.trace", Path(scratch) / "b.trace"]
        for seed, trace in enumerate(traces):
            write_loader_trace(trace, seed)
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "iotwin", "compare", "--quiet", *map(str, traces)], check=True)
        seconds = time.perf_counter() - begin
        yield from _set_figures(traces[0], Path(scratch) / "set")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    events = f"{_EPOCHS * _FILES * _CALLS / 1e6:.0f} million"
    detail = f"largest process so far {peak:.0f} MiB"
    yield Figure(f"compare {events} against {events} events: s", seconds, 10, detail=detail)
