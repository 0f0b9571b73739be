"""Directories, traces and recordings that somebody else, or bad luck, has made: nothing of theirs is lost, believed or run."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.figures.summary import summarise
from iotwin.trace_store.hosts.merge import merge_traces
from iotwin.trace_store.importers.import_trace import import_trace
from iotwin.trace_store.manifest import read_manifest, write_manifest
from iotwin.trace_store.raw.finish import finish_trace, recover_trace
from iotwin.trace_store.raw.record_files import Recording, refuse_unusable
from iotwin.trace_store.raw.records import BLOCK, EVENT
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.trace_directory import foreign_entry
from tests.conftest import PATIENCE_S, run_iotwin
from tests.synthetic import Job, write_job
from tests.trace_store.test_store import manifest, raw_events, record

_SMALL = Job(files=4, epochs=1, file_bytes=1 << 20)


def foreign_directories(parent: Path) -> list[Path]:
    """A web project, a data set, a trace with a thesis in it, and one with a folder that no trace has."""
    web = parent / "web"
    web.mkdir()
    (web / "manifest.json").write_text('{"name": "app"}')
    data = parent / "data"
    data.mkdir()
    request = {"workload": "unet3d", "layout": {}, "samples": 1, "seed": 1, "generator": 2}
    (data / "manifest.json").write_text(
        json.dumps({"request": request, "size_bytes": 0, "pieces": [], "kind": "iotwin data set"})
    )
    thesis, folder = write_job(parent / "thesis.trace", _SMALL), write_job(parent / "folder.trace", _SMALL)
    (folder / "samples" / "mine").mkdir()
    for directory in (web, data, thesis, folder / "samples" / "mine"):
        (directory / "precious.txt").write_text("mine")
    return [web, data, thesis, folder]


def test_force_replaces_traces_and_nothing_else(tmp_path):
    (tmp_path / "fio.log").write_text("fio version 2 iolog\n/d/f read 0 4096\n")
    traces = [write_job(tmp_path / name, _SMALL) for name in ("a", "b")]
    for directory in foreign_directories(tmp_path):
        for replace in (
            lambda: Recording(directory, manifest(), force=True),  # noqa: B023
            lambda: import_trace(tmp_path / "fio.log", directory, force=True),  # noqa: B023
            lambda: merge_traces(traces, directory, force=True),  # noqa: B023
        ):
            with pytest.raises(UsageError, match="choose another name"):
                replace()
        assert [path.read_text() for path in directory.rglob("precious.txt")] == ["mine"], directory
    for _ in range(2):
        import_trace(tmp_path / "fio.log", tmp_path / "t", force=True)
        merge_traces(traces, tmp_path / "t", force=True)
        Recording(tmp_path / "t", manifest(), force=True).close()
        finish_trace(tmp_path / "t", read_manifest(tmp_path / "t"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        ("manifest.json", True), ("parts.parquet", True),
        ("block.parquet.partial", True), (".block.parquet.0123456789abcdef.partial", True),
        (".notes.0123456789abcdef.partial", False),
            ("notes.txt", False), ("raw/any", True), ("logs/x/y", True),
        ("events.parquet/part-00003.parquet", True), ("events.parquet/part-3.parquet", False), ("samples/cpu.parquet", True),
        ("samples/other.parquet", False), ("events.parquet/part-00003.parquet/x", False), ("samples/cpu.parquet/x", False),
        ("hosts/node0/samples/cpu.parquet", True), ("hosts/node0/samples/other", False), ("hosts/node0/files.parquet", False),
        ("hosts/node0/raw/x", False), ("hosts/notes.txt", False), ("other/cpu.parquet", False),
    ],
)  # fmt: skip
def test_what_a_trace_may_hold(tmp_path, path, is_ours):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert (foreign_entry(tmp_path) is None) == is_ours


def test_a_link_is_no_place_for_a_trace(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UsageError, match="symbolic link"):
        refuse_unusable(tmp_path / "link", force=True)


def test_a_recording_appears_with_all_that_a_recovery_needs(tmp_path, monkeypatch):
    """Killed before: nothing of that name. The first that is seen there has its manifest."""
    seen = []
    rename = os.replace

    def watched(source, target, **folders):
        if target == "t":
            seen.append((target, sorted(path.name for path in (tmp_path / source).iterdir()), (tmp_path / "t").exists()))
        return rename(source, target, **folders)

    monkeypatch.setattr(os, "replace", watched)
    Recording(tmp_path / "t", manifest()).close()
    assert seen == [("t", ["logs", "manifest.json", "raw"], False)]
    assert recover_trace(tmp_path / "t").status == "recovered"


def test_a_recording_that_cannot_begin_leaves_nothing(tmp_path):
    made = manifest()
    made.target.command = ["true", "\udcff"]  # as an argument that is not UTF-8 comes from the command line
    with pytest.raises(UnicodeEncodeError):
        Recording(tmp_path / "t", made)
    assert list(tmp_path.iterdir()) == []


_LINE = ':::MLLOG {"key": "epoch", "event_type": "INTERVAL_START", '
_LINES = [
    _LINE + '"time_ns": 1' + "0" * 30 + "}",
    _LINE + '"time_ns": 1e999}',
    _LINE + '"time_ns": 5, "metadata": {"epoch_num": 99999999999}}',
    _LINE + '"time_ns": 5, "metadata": {"rank": 1e999}}',
    "[99999999999] " + _LINE + '"time_ns": 5}',
    _LINE + '"time_ns": 5, "metadata": {"epoch_num": Infinity}}',
    _LINE + '"a": ' + "[" * 200_000 + "]" * 200_000 + "}",
]


@pytest.mark.parametrize("number", range(len(_LINES)))
def test_no_line_of_a_log_costs_the_trace(tmp_path, number):
    made = record(tmp_path / "t", raw_events(100))
    end = '":::MLLOG {"key": "epoch", "event_type": "INTERVAL_END", "time_ns": 6}'
    (tmp_path / "t" / "logs" / "stdout").write_text(f"{_LINES[number]}\n{end}\n")
    finish_trace(tmp_path / "t", made)
    assert Trace(tmp_path / "t").manifest.events == 100
    assert any("torn" in note for note in made.notes)


def test_a_line_that_never_ends_is_not_held(tmp_path):
    import tracemalloc

    made = record(tmp_path / "t", raw_events(10))
    (tmp_path / "t" / "logs" / "stdout").write_bytes(b"x" * (64 << 20))
    tracemalloc.start()
    finish_trace(tmp_path / "t", made)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_zeros_and_chance_bytes_are_no_events(tmp_path):
    record(tmp_path / "t", raw_events(100))
    rng = np.random.default_rng(1)
    with (tmp_path / "t" / "raw" / "events.bin").open("ab") as file:
        file.write(bytes(EVENT.itemsize * 500))
        file.write(rng.bytes(EVENT.itemsize * 500))
    recovered = recover_trace(tmp_path / "t")
    assert recovered.events == 100 and recovered.lost_events == 1000
    assert Trace(tmp_path / "t").events_frame()["start_ns"].min() > 0


def test_chance_bytes_in_records_are_left_out(tmp_path):
    events = raw_events(200)
    rng = np.random.default_rng(2)
    for name in ("inode", "device", "generation"):
        events[name] = rng.integers(0, 1 << 31, 200)
    events["inode"] = events["device"].astype(np.uint64) << np.uint64(31)
    made = record(tmp_path / "t", events)
    blocks = np.zeros(50, BLOCK)
    blocks.view(np.uint8)[:] = np.frombuffer(rng.bytes(blocks.nbytes), np.uint8)
    (tmp_path / "t" / "raw" / "blocks.bin").write_bytes(blocks.tobytes())
    (tmp_path / "t" / "raw" / "gpu.bin").write_bytes(rng.bytes(4800))
    (tmp_path / "t" / "raw" / "names.bin").write_bytes(rng.bytes(5000))
    finish_trace(tmp_path / "t", made)
    trace = Trace(tmp_path / "t")
    assert trace.manifest.events == 200 and len(trace.files()) == 200
    trace.block(), trace.gpu(), trace.processes()


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "[]",
        "{}",
        '{"kind": "clock"}',
        '{"kind": ["clock"]}',
        '{"kind": "ledger", "seen": 1}',
        '{"kind": "memory", "time_ns": 1e30}',
        '{"kind": "disk", "device": 5, "time_ns": 5}',
        "[" * 9999,
    ],
)
def test_a_damaged_journal_does_not_stop_a_recovery(tmp_path, line):
    record(tmp_path / "t", raw_events(100))
    journal = tmp_path / "t" / "raw" / "journal.jsonl"
    journal.write_text(line + "\n" + journal.read_text() + line)
    assert recover_trace(tmp_path / "t").events == 100
    assert Trace(tmp_path / "t").manifest.clock


@pytest.mark.parametrize("missing", ["raw/names.bin", "raw/journal.jsonl", "logs"])
def test_what_is_missing_does_not_stop_a_recovery(tmp_path, missing):
    record(tmp_path / "t", raw_events(100))
    path = tmp_path / "t" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert recover_trace(tmp_path / "t").events == 100
    assert len(Trace(tmp_path / "t").events_frame()) == 100


def test_a_manifest_lost_with_the_machine_comes_back_from_the_journal(tmp_path):
    record(tmp_path / "t", raw_events(100))
    (tmp_path / "t" / "manifest.json").write_bytes(bytes(300))
    recovered = recover_trace(tmp_path / "t")
    assert recovered.events == 100 and recovered.target.command == ["x"] and recovered.host.hostname == "h"


@pytest.mark.parametrize("hostname", ["../../../ESCAPED", "{outside}", "..", ".", "", "a/b", "x" * 300, "a\0b"])
def test_a_merge_stays_in_its_directory(tmp_path, hostname):
    traces, hostname = [], hostname.format(outside=tmp_path / "outside")
    for name in ("one", "two"):
        path = write_job(tmp_path / "deep" / "er" / name, _SMALL)
        made = read_manifest(path)
        made.host.hostname = hostname
        write_manifest(path, made)
        (path / "logs").mkdir()
        (path / "logs" / "stdout").write_text("said")
        traces.append(path)
    before = set(tmp_path.rglob("*"))
    merged = merge_traces(traces, tmp_path / "deep" / "er" / "merged")
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "deep" / "er" / "merged") for path in new)
    assert sum(path.name == "cpu.parquet" for path in new) == 1 and sum(path.parent.name == "logs" for path in new) == 2
    assert merged.hosts[0].name == hostname
    Trace(tmp_path / "deep" / "er" / "merged")


def _lie(trace: Path, table: str, change) -> None:
    path = next(trace.glob(f"{table}.parquet/*")) if table == "events" else trace / f"{table}.parquet"
    frame = pq.read_table(path)
    pq.write_table(change(frame), path)


def _with(column: str, value, kind=None):
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        made = pa.array([value] * table.num_rows, kind or table.schema.field(column).type)
        return table.set_column(place, column, made)

    return change


_LIES = {
    "file_id out of range": ("events", _with("file_id", 10**6)),
    "negative file_id": ("events", _with("file_id", -2)),
    "null start": ("events", _with("start_ns", None)),
    "null op": ("events", _with("op", None)),
    "null result": ("events", _with("result", None)),
    "start beyond 64 bits": ("events", _with("start_ns", 2**63, pa.uint64())),
    "start at the end of time": ("events", _with("start_ns", 2**63 - 1)),
    "huge result": ("events", _with("result", 2**63 - 1)),
    "op a number": ("events", _with("op", 5, pa.int64())),
    "no column op": ("events", lambda table: table.drop_columns(["op"])),
    "duplicate files": ("files", _with("file_id", 0)),
    "null path": ("files", _with("path", None)),
    "unknown kind": ("files", _with("kind", "evil")),
    "no column path": ("files", lambda table: table.drop_columns(["path"])),
    "unknown role": ("processes", _with("role", "king")),
    "null pid": ("processes", _with("pid", None)),
    "unknown phase": ("phases", _with("phase", "lunch")),
    "null phase": ("phases", _with("start_ns", None)),
}


@pytest.mark.parametrize("lie", _LIES)
def test_a_well_formed_lie_is_refused_in_one_line(tmp_path, lie):
    path = write_job(tmp_path / "t", _SMALL)
    table, change = _LIES[lie]
    _lie(path, table, change)
    with pytest.raises(IotwinError) as error:
        summarise(Trace(path))
        Trace(path).events_frame()
    assert f"{table}.parquet" in str(error.value) and "\n" not in str(error.value)


def test_some_columns_of_files_with_wrong_ids_are_refused_too(tmp_path):
    path = write_job(tmp_path / "t", _SMALL)
    assert Trace(path).table("files", ["kind", "path"]).column_names == ["kind", "path"]
    _lie(path, *_LIES["duplicate files"])
    with pytest.raises(IotwinError, match=r"files\.parquet.*file_id is not 0, 1, 2"):
        Trace(path).table("files", ["path"])


@pytest.mark.parametrize("content", [b'{"status": "\xff"}', b"[" * 100_000, b'{"kind": "iotwin data set"}', b'{"events": 1e99}'])
def test_a_manifest_that_is_none_is_refused_in_one_line(tmp_path, content):
    path = write_job(tmp_path / "t", _SMALL)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(IotwinError, match="manifest"):
        Trace(path)


@pytest.mark.parametrize(
    "change",
    [
        {"exit_status": 10**30},
        {"start_ns": 2**63},
        {"status": "dreaming"},
        {"kind": "a book"},
        {"kind": "a\nb" * 1000},
        {"events": -1},
        {"clock": [{"monotonic_ns": 2**64, "realtime_ns": 0, "uncertainty_ns": 0}]},
    ],
)
def test_a_manifest_says_nothing_impossible(tmp_path, change):
    path = write_job(tmp_path / "t", _SMALL)
    document = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(document | change))
    with pytest.raises(IotwinError, match=r"not an iotwin trace.*: its manifest\.json is") as error:
        Trace(path)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 1000


def test_manifests_without_a_kind_are_read(tmp_path):
    path = write_job(tmp_path / "t", _SMALL)
    document = json.loads((path / "manifest.json").read_text())
    del document["kind"]
    (path / "manifest.json").write_text(json.dumps(document))
    assert Trace(path).manifest.status == "complete"


def test_what_is_no_file_holds_nobody_up(tmp_path):
    path = write_job(tmp_path / "t", _SMALL)
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    result = run_iotwin("info", path, timeout=PATIENCE_S)
    assert result.returncode == 1 and "not a regular file" in result.stderr
