"""Sets of hosts: read in place as one trace, hosts with a fault named, no phase counted twice."""

import json
import pickle
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.loops.similarity_results import compare_folders, is_folder_of_traces
from iotwin.trace_store import schema, writer
from iotwin.trace_store.figures.process_ranks import hosts_and_ranks
from iotwin.trace_store.figures.statistics import document, statistics
from iotwin.trace_store.fold import TraceStretch
from iotwin.trace_store.hosts import set_tables
from iotwin.trace_store.hosts.check_set import check_set
from iotwin.trace_store.hosts.make_set import make_set
from iotwin.trace_store.hosts.merge import merge_traces
from iotwin.trace_store.hosts.set_file import PIDS_PER_HOST, read_set, write_set
from iotwin.trace_store.manifest import ClockPair, TracedTask, read_manifest, write_manifest
from iotwin.trace_store.parquet_tables import TraceTables
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.timeline.grouping import group_processes
from iotwin.tracesim.phases import phases_of
from iotwin.tracesim.similarity import compare
from tests.processes import call
from tests.synthetic import SECOND, Job, write_job

BOOTED = 1_700_000_000 * SECOND


def host_trace(path: Path, name: str, boot_ns: int, **job) -> Path:
    """A synthetic trace of a host that was booted at the UNIX time `boot_ns`."""
    write_job(path, Job(**{"files": 8, "epochs": 2} | job))
    manifest = read_manifest(path)
    manifest.host.hostname = name
    manifest.clock = [ClockPair(time_ns, boot_ns + time_ns, 100) for time_ns in (manifest.start_ns, manifest.end_ns)]
    write_manifest(path, manifest)
    return path


def make_hosts(folder: Path, number: int = 2, **job) -> list[Path]:
    """Traces of hosts that were booted one second after another, and whose wall clocks agree."""
    return [host_trace(folder / f"node{i}.trace", f"node{i}", BOOTED + i * SECOND, seed=i, **job) for i in range(number)]


def test_a_set_reads_as_one_trace_and_copies_nothing(tmp_path):
    paths = make_hosts(tmp_path, parts=True, block=True, gpu=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    hosts = make_set(tmp_path, [])
    made = set(tmp_path.rglob("*")) - set(before)
    assert made == {tmp_path / "set.json"}
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path != tmp_path)
    assert [each.trace for each in hosts] == ["node0.trace", "node1.trace"] and hosts == read_set(tmp_path)
    document = json.loads((tmp_path / "set.json").read_text())
    assert document["version"] == 1
    assert document["hosts"][0].keys() >= {"host", "trace", "shift_ns", "error_ns", "how", "status", "ranks"}
    whole = Trace(tmp_path)
    shifts = [each.shift_ns for each in hosts]
    events = whole.events_frame()
    assert events["start_ns"].is_monotonic_increasing and len(events) == whole.manifest.events
    for index, (path, name) in enumerate(zip(paths, ("node0", "node1"), strict=True)):
        part, original = events[events["pid"] // PIDS_PER_HOST == index], Trace(path).events_frame()
        assert (part["start_ns"].to_numpy() - original["start_ns"].to_numpy() == shifts[index]).all()
        for column in ("op", "duration_ns", "fd", "offset", "result", "cpu"):
            assert part[column].astype(str).tolist() == original[column].astype(str).tolist()
        paths_of = [
            frame.files()["path"].to_numpy()[ids["file_id"].dropna().astype(int)]
            for frame, ids in ((whole, part), (Trace(path), original))
        ]
        assert (paths_of[0] == paths_of[1]).all()
        assert (whole.processes()["host"] == name).sum() == len(Trace(path).processes())
        parts = whole.step_parts()
        assert sorted(set(parts["rank"])) == [0, 1]
        assert parts["start_ns"].isin(Trace(path).step_parts()["start_ns"] + shifts[index]).sum() == len(parts) // 2
    assert whole.processes()["pid"].is_unique
    assert (whole.files()["file_id"] == np.arange(len(whole.files()))).all()
    assert set(whole.gpu()["device"]) == {0, set_tables._DEVICES_PER_HOST}
    assert len(whole.block()) == sum(len(Trace(path).block()) for path in paths)
    again = pickle.loads(pickle.dumps(whole))
    assert again.manifest == whole.manifest


_STARTS = pa.schema([("start_ns", pa.int64())])


def test_parts_of_a_set_are_stretches_of_time(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_ROWS_PER_GROUP", 50)
    monkeypatch.setattr(set_tables, "_PART_ROWS", 90)
    make_hosts(tmp_path, 3)
    make_set(tmp_path, [])
    whole = Trace(tmp_path)
    rows, events = whole.part_rows, whole.events_frame()
    assert len(rows) > 3 and sum(rows) == len(events)
    read = [pa.Table.from_batches(whole.events(["start_ns", "pid"], parts=[part])) for part in range(len(rows))]
    assert pa.concat_tables(read)["start_ns"].to_pylist() == events["start_ns"].tolist()
    assert [table["pid"].to_pylist() for table in read if table] and len(next(whole.events(parts=[0, 1]))) > 0
    for part in range(1, len(rows)):
        begin = whole.part_begin_ns(part)
        flight = whole.in_flight(begin, part, ["start_ns", "pid"]).to_pandas()
        expected = events[(events["start_ns"] < begin) & (events["start_ns"] + events["duration_ns"] > begin)]
        assert flight["pid"].tolist() == expected["pid"].tolist()
    assert TraceStretch(whole, [0]).in_flight(["start_ns"]).batch.num_rows == 0
    tables, own = TraceTables(tmp_path / "node0.trace"), Trace(tmp_path / "node0.trace").events_frame()
    end = own["start_ns"] + own["duration_ns"]
    start_ns = own["start_ns"].tolist()
    for begin_ns, until_ns in ((start_ns[60], start_ns[60]), (start_ns[40], start_ns[-2]), (start_ns[49], start_ns[50]), (0, 0)):
        flight = tables.in_flight(begin_ns, None, ["start_ns"], until_ns)["start_ns"].to_pylist()
        assert flight == own.loc[(end > begin_ns) & (own["start_ns"] <= until_ns), "start_ns"].tolist()
        groups = pa.Table.from_batches(tables.events_by_page(["start_ns"], begin_ns, until_ns, 20), _STARTS)[
            "start_ns"
        ].to_pylist()
        at = own.index[(own["start_ns"] >= begin_ns) & (own["start_ns"] <= until_ns)]
        whole_groups = range(at.min() // 50 * 50, min(at.max() // 50 * 50 + 50, len(own))) if len(at) else []
        assert groups == own["start_ns"].iloc[list(whole_groups)].tolist()


@pytest.mark.parametrize(
    "where",
    [pc.field("op") == "read", pc.field("file_id").isin([1, 20]), pc.field("pid") > PIDS_PER_HOST, pc.field("result") > 9],
)
def test_conditions_are_on_the_sets_own_numbers(tmp_path, where):
    make_hosts(tmp_path)
    make_set(tmp_path, [])
    whole = Trace(tmp_path)
    found = whole.events_frame(["start_ns", "tid"], where)
    table = pa.Table.from_batches(whole.events()).filter(where).select(["start_ns", "tid"]).to_pandas()
    assert 0 < len(found) < whole.manifest.events and (found.to_numpy() == table.to_numpy()).all()


def test_a_merged_trace_equals_its_set(tmp_path):
    make_hosts(tmp_path / "set", 3, parts=True, block=True)
    make_set(tmp_path / "set", [])
    whole = Trace(tmp_path / "set")
    merge_traces([tmp_path / "set"], tmp_path / "one")
    one = Trace(tmp_path / "one")
    assert one.manifest == whole.manifest
    assert one.events_frame().astype({"op": str}).equals(whole.events_frame().astype({"op": str}))
    for name in schema.TABLES:
        assert one.table(name).equals(whole.table(name))
    for kind in schema.SAMPLES:
        first, second = one.samples(kind), whole.samples(kind)
        assert (first is None and second is None) or first.equals(second)
    for by in ("op", "file", "process", "host", "rank"):
        first, second = (statistics([each], ["x"], by) for each in (one, whole))
        assert first.equals(second)


def test_rows_by_host_and_by_rank(tmp_path):
    paths = make_hosts(tmp_path, 3)
    make_set(tmp_path, [])
    whole = Trace(tmp_path)
    rows = statistics([whole], ["x"], "host").set_index("host")
    for path in paths:
        alone = statistics([Trace(path)], ["x"], "host").iloc[0]
        shown = ["calls", "read_bytes", "total_ns", "p50_ns"]
        assert rows.loc[alone["host"], shown].tolist() == alone[shown].tolist()
    ranks = statistics([whole], ["x"], "rank")
    assert sorted(zip(ranks["host"], ranks["rank"], strict=True)) == [("node0", 0), ("node1", 1), ("node2", 2)]
    assert ranks["calls"].sum() == whole.manifest.events
    assert hosts_and_ranks(Trace(paths[2]))["rank"].unique().tolist() == [0]
    busiest = whole.processes()["pid"].tolist()
    groups = group_processes(whole, "host", busiest, 12)
    assert groups.titles == ["node0", "node1", "node2"]
    assert group_processes(whole, "rank", busiest, 12).titles == [f"node{i} rank 1000 with its processes" for i in range(3)]
    assert (groups.of(np.array(busiest)) == np.array(busiest) // PIDS_PER_HOST).all()


def test_phases_that_each_host_logs_as_rank_0_count_once(tmp_path):
    paths = make_hosts(tmp_path, 4)
    make_set(tmp_path, [])
    whole = Trace(tmp_path)
    assert len(phases_of(whole.phases())) == len(phases_of(Trace(paths[0]).phases()))
    assert sorted(whole.phases()["rank"].unique()) == [0, 1, 2, 3]
    found = compare(whole, whole)
    assert found.overall == pytest.approx(1)


def test_ranks_that_the_hosts_logged_are_kept_if_no_two_are_equal(tmp_path):
    for rank, path in zip((5, 2), make_hosts(tmp_path), strict=True):
        table = pq.read_table(path / "phases.parquet")
        at = table.schema.get_field_index("rank")
        pq.write_table(table.set_column(at, "rank", pa.array([rank] * len(table), pa.int32())), path / "phases.parquet")
    assert [each.ranks for each in make_set(tmp_path, [])] == [[5], [2]]
    assert set(Trace(tmp_path).phases()["rank"]) == {2, 5}
    assert set(statistics([Trace(tmp_path)], ["x"], "rank")["rank"]) == {2, 5}


def test_ranks_of_launched_tasks_are_those_of_their_processes(tmp_path):
    paths = make_hosts(tmp_path)
    for path, rank in zip(paths, (7, 4), strict=True):
        manifest = read_manifest(path)
        manifest.target.tasks = [TracedTask(rank, manifest.target.root_pid, 0)]
        write_manifest(path, manifest)
    assert [each.ranks for each in make_set(tmp_path, [])] == [[7], [4]]
    whole = Trace(tmp_path)
    assert set(whole.phases()["rank"]) == {4, 7}  # each host logged rank 0
    found = hosts_and_ranks(whole)
    assert set(zip(found["host"], found["rank"], strict=True)) == {("node0", 7), ("node1", 4)}
    assert [(task.rank, task.pid // PIDS_PER_HOST) for task in whole.manifest.target.tasks] == [(7, 0), (4, 1)]
    assert set(hosts_and_ranks(Trace(paths[0]))["rank"]) == {7}


def test_hosts_with_a_fault_are_named_and_the_rest_goes_on(tmp_path):
    paths = make_hosts(tmp_path, 6)
    for index, change in ((1, {"status": "recording"}), (2, {"schema_version": 2})):
        document = json.loads((paths[index] / "manifest.json").read_text())
        (paths[index] / "manifest.json").write_text(json.dumps(document | change))
    part = next((paths[3] / "events.parquet").glob("*"))
    part.write_bytes(part.read_bytes()[:100])
    later = host_trace(tmp_path / "later", "node5", BOOTED)
    hosts = make_set(tmp_path / "set", [*paths[:5], tmp_path / "none", tmp_path / "gone.trace"])
    assert [each.status for each in hosts] == ["complete", *["missing"] * 3, "complete", *["missing"] * 2]
    assert hosts[0].trace == str(paths[0].absolute())  # outside of the set
    for each, word in zip(hosts[1:4] + hosts[5:], ("still recording", "upgrade", "truncated", "no such", "no such"), strict=True):
        assert word in each.note
    later.rename(tmp_path / "gone.trace")
    other = read_manifest(paths[4])
    other.host.kernel = "6.2.0"
    write_manifest(paths[4], other)
    trace = Trace(tmp_path / "set")
    assert {each.name: each.status for each in trace.manifest.hosts}["node4"] == "complete"
    assert trace.manifest.events == sum(read_manifest(paths[index]).events for index in (0, 4))
    notes = check_set(tmp_path / "set")["notes"]
    assert any("gone is late" in note for note in notes) and any("6.1.0 (node0), 6.2.0 (node4)" in note for note in notes)
    assert sum("left out" in note for note in notes) == 5
    checked = call("set", "check", tmp_path / "set")
    assert checked.returncode == 1 and "gone: missing" in checked.stdout
    set_tables._NAMED.clear()  # as in another process
    info = call("info", tmp_path / "set")
    assert (
        info.returncode == 0
        and "host gone is left out" in info.stderr
        and "host node1: missing" in info.stdout
        and "1 more host" in info.stdout
    )


def test_what_is_no_set(tmp_path):
    paths = make_hosts(tmp_path)
    with pytest.raises(UsageError, match="is a trace"):
        make_set(paths[0], [paths[1]])
    with pytest.raises(UsageError, match="1 to 511"):
        make_set(tmp_path / "empty", [])
    with pytest.raises(IotwinError, match="none of the traces"):
        make_set(tmp_path / "new", [tmp_path / "none"])
    merge_traces(paths, tmp_path / "one")
    assert "merged trace" in make_set(tmp_path / "new", [tmp_path / "one", paths[0]])[0].note
    with pytest.raises(UsageError, match="give a set"):
        merge_traces(paths[:1], tmp_path / "other")
    make_set(tmp_path, paths)
    text = (tmp_path / "set.json").read_text()
    for change in ('"version": 2', '"version": "x"', '"version": 1, "hosts": 3'):
        (tmp_path / "set.json").write_text(text.replace('"version": 1', change))
        with pytest.raises(IotwinError, match=r"set\.json"):
            Trace(tmp_path)
    changes = (
        ({"shifts": [[0, 0], [100, 50]]}, "not those of a clock"),
        ({"host": "node0"}, "two hosts are called node0"),
        ({"shift_ns": -(1 << 62)}, "shift_ns"),
        ({"shifts": [[0, 1 << 62]]}, "shifts"),
    )
    for change, words in changes:
        content = json.loads(text)
        content["hosts"][1] |= change
        (tmp_path / "set.json").write_text(json.dumps(content))
        with pytest.raises(IotwinError, match=words):
            Trace(tmp_path)
    for other in (paths[0], tmp_path / "nowhere", tmp_path / "set.json"):
        with pytest.raises(IotwinError, match="is no set of hosts"):
            check_set(other)


def test_default_traces_of_a_set_are_traces_alone(tmp_path):
    make_hosts(tmp_path)
    for other in ("data", ".left.partial"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "manifest.json").write_text('{"kind": "iotwin data set"}')
    (tmp_path / "cut.trace" / "raw").mkdir(parents=True)
    (tmp_path / "cut.trace" / "manifest.json").write_text("")
    assert [(each.trace, each.status) for each in make_set(tmp_path, [])] == [
        ("cut.trace", "missing"), ("node0.trace", "complete"), ("node1.trace", "complete")
    ]  # fmt: skip


def test_names_of_hosts_remain_if_they_differ(tmp_path):
    names = ("node-1", "node", "node", "node-2")
    paths = [host_trace(tmp_path / f"{index}", name, BOOTED, files=2, epochs=1) for index, name in enumerate(names)]
    assert [each.host for each in make_set(tmp_path / "set", paths)] == ["node-1", "node", "node-3", "node-2"]


def test_a_trace_that_is_given_twice_is_named_and_none_is_replaced_by_the_merge(tmp_path, capsys):
    paths = make_hosts(tmp_path / "job")
    (tmp_path / "link").symlink_to(paths[0])
    for again in (paths[0], tmp_path / "job" / "." / ".." / "job" / paths[0].name, tmp_path / "link"):
        assert len(make_set(tmp_path / "set", [*paths, again])) == len(paths) + 1
        assert f"note: {again} is the same trace as another one of the set" in capsys.readouterr().err
        assert len({each.host for each in make_set(tmp_path / "set", [*paths, again])}) == len(paths) + 1
    make_set(tmp_path / "job", paths)
    for traces in (paths, [tmp_path / "job"]):
        with pytest.raises(UsageError, match="one of the traces"):
            merge_traces(traces, paths[1], force=True)
    assert "is a set" in make_set(tmp_path / "set", [tmp_path / "job", tmp_path / "link"])[0].note
    assert make_set(tmp_path / "job", [tmp_path / "job" / ".." / "link"])[0].trace == str(tmp_path / "link")
    make_set(tmp_path / "job", paths)
    merge_traces([tmp_path / "job"], tmp_path / "one")
    paths[1].rename(tmp_path / "away")
    (tmp_path / "one").rename(paths[1])
    assert "merged trace" in Trace(tmp_path / "job").manifest.hosts[1].note


def test_processes_of_no_rank_leave_the_ranks_whole_numbers(tmp_path):
    make_hosts(tmp_path)
    hosts = make_set(tmp_path, [])
    write_set(tmp_path, [hosts[0], msgspec.structs.replace(hosts[1], ranks=[])])
    rows = {each["host"]: each["rank"] for each in document(statistics([Trace(tmp_path)], ["x"], "rank"))}
    assert rows == {"node0": 0, "node1": None} and isinstance(rows["node0"], int)


def test_a_set_is_no_folder_of_traces_to_compare(tmp_path):
    (tmp_path / "set").mkdir()
    paths = make_hosts(tmp_path / "set", files=2, epochs=1)
    assert is_folder_of_traces(tmp_path / "set")
    make_set(tmp_path / "set", paths)
    assert not is_folder_of_traces(tmp_path / "set")
    host_trace(tmp_path / "twins" / "a.trace", "node0", BOOTED, files=2, epochs=1)
    shutil.copytree(tmp_path / "twins" / "a.trace", tmp_path / "twins" / ".b.trace.part")  # as of a trace that is being made
    found = compare_folders(tmp_path / "set", tmp_path / "twins", None)
    assert (found["rows"], found["columns"]) == (["set"], ["a.trace"])


def test_files_that_hosts_may_share_are_named(tmp_path):
    make_hosts(tmp_path)
    make_set(tmp_path, [])
    found = check_set(tmp_path)
    assert found["perhaps_shared_files"] > 0 and any("may be the same" in note for note in found["notes"])


def test_samples_of_hosts_are_means_or_apart(tmp_path):
    paths = make_hosts(tmp_path, block=True)
    make_set(tmp_path, [])
    whole, each = Trace(tmp_path), [Trace(path).samples("cpu") for path in paths]
    assert whole.samples("cpu")["user"].mean() == pytest.approx(np.mean([frame["user"].mean() for frame in each]), abs=0.02)
    assert set(whole.samples("disk")["device"]) == {
        f"{host} {name}" for host in ("node0", "node1") for name in set(Trace(paths[0]).samples("disk")["device"])
    }


def test_sql_over_a_set(tmp_path):
    make_hosts(tmp_path)
    make_set(tmp_path, [])
    text = "select host, count(*) from events join processes using (pid) group by host order by host"
    found = call("stats", tmp_path, "--sql", text, "--json")
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["rows"]
    assert [row[0] for row in rows] == ["node0", "node1"] and sum(row[1] for row in rows) == Trace(tmp_path).manifest.events
