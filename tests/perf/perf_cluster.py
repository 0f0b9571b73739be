"""Memory of stats, info, compare and report on a set of 64 hosts with a million files and a billion events.

    python -m tests.perf.perf_cluster [EPOCHS [READS [FILES [MEMORY [COMMAND ...]]]]]

By default, each host opens, reads 48 times and closes each of its files in each of 20 epochs: 50 x 20 x 1,000,000 events. Only
four hosts have separate events, which the others share as hard links. Each host has separate files. The sums in the answers are
compared with those of the events that were made.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from iotwin.common.units import parse_size
from iotwin.trace_store import schema
from iotwin.trace_store.columns import integers
from iotwin.trace_store.hosts.make_set import make_set
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.writer import write_events, write_tables
from tests.perf.figures import Figure
from tests.perf.perf_visuals import run_with_peak
from tests.perf.records import record_figures

_HOSTS, _DISTINCT, _LOADERS = 64, 4, 8
_READ_BYTES, _CALL_NS = 256 << 10, 110_000
_INTERPRETER_BYTES = 200 << 20
_COMMANDS = ("stats", "stats --by file", "info", "compare", "report")


def _epoch(number: int, files: int, reads: int, rng: np.random.Generator) -> pa.Table:
    """Return the calls of an epoch in order of start: eight loaders visit the files in a fresh order."""
    calls = reads + 2
    visit, call = np.divmod(np.arange(files * calls), calls)
    turn = number * (-(-files // _LOADERS)) + visit // _LOADERS
    start_ns = turn * (calls + 2) * _CALL_NS + call * _CALL_NS + rng.integers(0, 20_000, len(visit))
    order = np.argsort(start_ns, kind="stable")
    visit, call = visit[order], call[order]
    reading = (call > 0) & (call <= reads)
    columns: dict[str, Any] = {
        "start_ns": start_ns[order], "duration_ns": rng.integers(20_000, 90_000, len(visit)),
        "op": pa.DictionaryArray.from_arrays(np.where(reading, 1, np.where(call == 0, 0, 2)), ["openat", "read", "close"]),
        "pid": 1000 + visit % _LOADERS, "tid": 1000 + visit % _LOADERS, "file_id": rng.permutation(files)[visit],
        "fd": np.full(len(visit), 5), "offset": pa.array((call - 1) * _READ_BYTES, mask=~reading),
        "requested": pa.array(np.full(len(visit), _READ_BYTES), mask=~reading), "result": np.where(reading, _READ_BYTES, 5),
        "flags": np.zeros(len(visit), np.int64), "cpu": np.zeros(len(visit), np.int64),
    }  # fmt: skip
    return pa.table([pa.array(columns[name]) for name in schema.EVENTS.names], names=schema.EVENTS.names).cast(schema.EVENTS)


def _make_set(directory: Path, epochs: int, reads: int, files: int) -> dict[str, int]:
    """Write the set, and return its sums: events, bytes read, time in calls in ns."""
    own, known, spent_ns = files // _HOSTS, {"events": 0, "read_bytes": 0}, [0] * _DISTINCT
    paths = [directory / f"host{host}.trace" for host in range(_HOSTS)]

    def made(host: int) -> Iterator[pa.Table]:
        rng = np.random.default_rng(host)
        for epoch in range(epochs):
            table = _epoch(epoch, own, reads, rng)
            spent_ns[host] += int(integers(table["duration_ns"]).sum())
            yield table

    epoch_ns = -(-own // _LOADERS) * (reads + 4) * _CALL_NS
    for host, path in enumerate(paths):
        events = path / "events.parquet"
        manifest = Manifest("complete", "synthetic", Host(f"node{host}", "", 16, 1 << 30, "x86_64"), Target())
        if host < _DISTINCT:
            manifest.events = write_events(events, made(host))
        else:
            shutil.copytree(paths[host % _DISTINCT] / "events.parquet", events, copy_function=os.link)
            manifest.events = epochs * own * (reads + 2)
        ids = np.arange(own)
        tables: dict[str, Any] = {
            "files": {
                "file_id": ids, "device": np.ones(own, np.int64), "inode": ids, "generation": np.ones(own, np.int64),
                "path": [f"/data/node{host}/case_{number}.npy" for number in range(own)], "kind": ["dataset"] * own,
                "size_bytes": np.full(own, reads * _READ_BYTES),
            },
            "processes": {
                "pid": [999, *range(1000, 1000 + _LOADERS)], "comm": ["python"] * 9, "role": ["rank"] + ["loader"] * 8,
                "ppid": [1] + [999] * 8,
            },
            "phases": {
                "phase": ["epoch"] * epochs, "start_ns": [epoch * epoch_ns for epoch in range(epochs)],
                "end_ns": [(epoch + 1) * epoch_ns - 1 for epoch in range(epochs)], "rank": [host] * epochs,
            },
        }  # fmt: skip
        write_tables(path, manifest, **tables)
        known["events"] += manifest.events
        known["read_bytes"] += epochs * own * reads * _READ_BYTES
    make_set(directory, paths)
    return known | {"total_ns": sum(spent_ns) * (_HOSTS // _DISTINCT)}


def _sums(name: str, document: dict[str, Any], page: Path) -> dict[str, int]:
    """Return the sums in the output of the command `name`, as far as it has them."""
    if name == "report":
        text = page.read_text(encoding="utf-8")
        operations = json.loads(text[text.index('{"axis"') :].split("</script>")[0])["traces"][0]["operations"]
        rows = [dict(zip(operations["columns"], row, strict=True)) for row in operations["rows"]]
        return {"events": sum(row["calls"] for row in rows), "read_bytes": sum(row["size_bytes"] for row in rows),
                "total_ns": sum(row["time_ns"] for row in rows)}  # fmt: skip
    rows = document["operations" if name == "info" else "rows"]
    return {"events": sum(row["calls"] for row in rows), "read_bytes": sum(row["read_bytes"] for row in rows),
            "total_ns": sum(row["total_ns"] for row in rows)}  # fmt: skip


def measure(epochs: int = 20, reads: int = 48, files: int = 1_000_000, memory: str = "1GiB", *names: str) -> Iterator[Figure]:
    """Yield the figures of the commands `names`, by default all."""
    with tempfile.TemporaryDirectory() as scratch:
        page, directory = Path(scratch) / "report.html", Path(scratch) / "set"
        known = _make_set(directory, epochs, reads, files)
        what = f"{known['events']:,} events on {files // _HOSTS * _HOSTS:,} files of {_HOSTS} hosts"
        limit = ((parse_size(memory) or 0) + _INTERPRETER_BYTES) / 2**20
        more = {"compare": [directory], "report": ["-o", page]}
        for name in names or _COMMANDS:
            begin = sum(os.times()[2:4])
            options = [*more.get(name, []), "--memory", memory, "--json", "--quiet"]
            output, seconds, peak = run_with_peak(*name.split(), directory, *options)
            detail = f"{seconds:.0f} s, {sum(os.times()[2:4]) - begin:.0f} CPU s"
            yield Figure(f"{name} --memory {memory} of {what}: peak MiB of all processes", peak, limit, detail=detail)
            document = json.loads(output)
            same = document["overall"] == 1 if name == "compare" else _sums(name, document, page) == known
            yield Figure(f"{name} of {what}: sums that differ from those known", float(not same), 0)


if __name__ == "__main__":
    given = sys.argv[1:]
    record_figures("cluster", measure(*(int(text) for text in given[:3]), *given[3:]))
