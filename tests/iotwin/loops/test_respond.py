"""The response to other storage, from runs that are made up: what is evicted, capped, timed and told."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.result_folder import LIST
from iotwin.datagen.datasets.recorded import write_recipe
from iotwin.loops.respond import storage_response as module
from iotwin.loops.respond.limits_in_force import reading_of
from iotwin.loops.respond.storage_response import UNCHANGED, StorageChange, parse_change, respond
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets.storage_limits import DeviceReads, Limits
from tests.benchmark.made_trace import Made
from tests.processes import call
from tests.synthetic import MILLISECOND, Job, crowd, write_job

SUMMARY = {
    "overall": 0.99, "verdict": "alike", "noise_floor": None, "best_round": 1, "rounds": [], "assumptions": [],
    "source": {"counts": {"read": 1}},
}  # fmt: skip


class Machine:
    """Stands in for the tracer and the kernel: notes what is asked of them, and writes a trace of `runs` for each run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: dict[str, Job] = {"job": Job(epochs=2), "twin": Job(epochs=2)}
        self.asked: list[tuple[str, object]] = []
        self.disks: DeviceReads | None = DeviceReads(1 << 30, 10)  # what a run reads from them
        self.memory_bytes = 100 << 20
        self.crowded: set[str] = set()  # sides whose runs are on a crowded machine
        monkeypatch.setattr(module, "evict", lambda path: self.asked.append(("evict", path)))
        monkeypatch.setattr(module, "fetch", lambda path: self.asked.append(("fetch", path)))
        monkeypatch.setattr(module, "reason_against", lambda what: None)
        monkeypatch.setattr(module, "device_below", lambda path: f"8:{len(path.name)}")
        monkeypatch.setattr(module, "LimitedCgroups", self._limited)
        monkeypatch.setattr(module, "kept_cached", self._kept)
        monkeypatch.setattr(module, "run_traced", self._run)

    def _limited(self, limits, devices):
        machine = self

        class Cgroups:
            most_memory_bytes = self.memory_bytes

            def device_reads(self):
                return machine.disks

            def __enter__(self):
                machine.asked.append(("limit", (limits, set(devices))))
                return self

            def __exit__(self, *_):
                machine.asked.append(("end", None))

        return Cgroups()

    @contextmanager
    def _kept(self, paths):
        self.asked.append(("keep", sorted(paths)))
        yield
        self.asked.append(("leave", None))

    def _run(self, command, path, workload, page_faults, limits):
        side = workload.partition("-")[0]
        self.asked.append(("run", side))
        write_job(path, self.runs[side])
        if side in self.crowded:
            crowd(path)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def twin(tmp_path) -> Path:
    """A twin's directory as `iotwin twin` leaves it, and the data set of the job that it was made from."""
    directory, data = tmp_path / "twin", tmp_path / "jobs_data"
    (directory / "round-1").mkdir(parents=True)
    data.mkdir()
    trace = write_job(tmp_path / "job.trace", Job(root=str(data), epochs=1))
    for path in Trace(trace).files()["path"]:
        if "checkpoint" not in path:
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(b"x")
    (directory / "summary.json").write_text(json.dumps(SUMMARY))
    (directory / "round-1" / "similarity.json").write_text(json.dumps({"a": str(trace)}))
    write_recipe(directory / "dataset.csv", [("a.npy", 1000), ("b.npy", 2000)])
    return directory


def test_only_data_sets_leave_the_page_cache_and_before_each_run(twin, machine, tmp_path):
    """A job that reads its libraries through a cap is slowed by what no twin imitates."""
    respond(twin, tmp_path / "out", [parse_change("cold")], 1, ["true"], force=False)
    files = Trace(tmp_path / "job.trace").files()
    jobs = sorted(files["path"][files["kind"] == "dataset"])
    twins = [str(twin / "data" / name) for name in ("a.npy", "b.npy")]
    told = [(what, str(which)) for what, which in machine.asked if what in ("evict", "fetch", "run")]
    expected = []
    for what in ("fetch", "evict"):
        for side, data in (("job", jobs), ("twin", twins)):
            expected += [*((what, name) for name in data), ("run", side)]
    assert sorted(told) == sorted(expected) and len(jobs) > 2
    assert [entry for entry in told if entry[0] == "run"] == [("run", side) for side in ("job", "twin", "job", "twin")]
    assert told.index(("evict", jobs[0])) > told.index(("run", "twin"))


def test_limits_hold_for_their_run_alone_and_leave_the_cache_beside_the_runs_own_memory(twin, machine, tmp_path):
    changes = [parse_change("read=4MB/s,requests=60"), parse_change("cache=8MiB")]
    respond(twin, tmp_path / "out", changes, 1, [], force=False)
    asked = [entry for entry in machine.asked if entry[0] in ("limit", "run", "end")]
    device = {f"8:{len('data')}"}
    assert asked == [
        ("limit", (Limits(), set())),
        ("run", "twin"),
        ("end", None),
        ("limit", (Limits(4_000_000, 60), device)),
        ("run", "twin"),
        ("end", None),
        ("limit", (Limits(memory_bytes=(100 << 20) + (8 << 20)), device)),
        ("run", "twin"),
        ("end", None),
    ]


def test_what_a_run_reads_stays_cached_unless_the_cache_is_short(twin, machine, tmp_path):
    """What is to be cached is fetched when it is kept already; what is to be cold goes before, as nothing kept goes."""
    respond(twin, tmp_path / "out", [parse_change("requests=60"), parse_change("read=4MB,cache=8MiB")], 1, [], force=False)
    asked = [what for what, _ in machine.asked if what not in ("limit", "end")]
    cached, cold = ["keep", "fetch", "fetch", "run", "leave"], ["evict", "evict", "keep", "run", "leave"]
    assert asked == [*cached, *cold, "evict", "evict", "run"]
    data = [twin / "data" / name for name in ("a.npy", "b.npy")]
    assert all(paths == data for what, paths in machine.asked if what == "keep")


def test_a_row_has_the_mean_epoch_and_the_first_of_both(twin, machine, tmp_path):
    machine.runs["job"] = Job(epochs=2, compute_ns=20 * MILLISECOND)
    machine.runs["twin"] = Job(epochs=2, compute_ns=10 * MILLISECOND)
    document = respond(twin, tmp_path / "out", [parse_change("cold")], 3, ["true"], force=False)
    assert json.loads((tmp_path / "out" / "response.json").read_text()) == document
    row = document["changes"][1]
    assert row["change"] == "cold" and row["of"] == "epoch" and len(row["job"]["epochs_s"]) == 3
    assert row["job"]["seconds"] == pytest.approx(sum(row["job"]["epochs_s"][0]) / 2)
    assert row["ratio"] == pytest.approx(row["twin"]["seconds"] / row["job"]["seconds"]) and 0.4 < row["ratio"] < 0.8
    first = [row[side]["epochs_s"][0][0] for side in ("twin", "job")]
    assert row["first_epoch_ratio"] == pytest.approx(first[0] / first[1])


def test_where_one_has_no_epochs_both_are_timed_from_their_first_read_to_their_last(twin, machine, tmp_path):
    machine.runs["job"] = Job(epochs=2, log_phases=False)
    row = respond(twin, tmp_path / "out", [parse_change("cold")], 1, ["true"], force=False)["changes"][0]
    assert row["of"] == "reading" and row["first_epoch_ratio"] is None
    trace = Trace(tmp_path / "out" / "twin-cached-1.trace")
    events = trace.events_frame().merge(trace.files(), on="file_id")
    reads = events[(events["op"].astype(str) == "read") & (events["kind"].astype(str) == "dataset")]
    ends = reads["start_ns"] + reads["duration_ns"]
    assert row["twin"]["seconds"] == pytest.approx((ends.max() - reads["start_ns"].min()) / 1e9)
    assert row["ratio"] == pytest.approx(1, abs=0.01)


def test_a_twin_alone_has_no_ratio(twin, machine, tmp_path):
    document = respond(twin, tmp_path / "out", [parse_change("cold")], 1, [], force=False)
    assert document["job"] is None and [row["ratio"] for row in document["changes"]] == [None, None]
    assert all("job" not in row for row in document["changes"])


def test_a_machine_that_cannot_cap_says_so_before_anything_runs(twin, machine, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "reason_against", lambda what: "it needs root; run under sudo")
    for change in ("read=1MB", "requests=5", "cache=1MiB"):
        with pytest.raises(IotwinError, match=f"cannot make the change '{change}': it needs root"):
            respond(twin, tmp_path / "out", [parse_change("cold"), parse_change(change)], 1, [], force=False)
    assert not [entry for entry in machine.asked if entry[0] == "run"] and not (tmp_path / "out").exists()
    respond(twin, tmp_path / "out", [parse_change("cold")], 1, [], force=False)


def test_an_earlier_response_is_replaced_only_by_force_and_other_files_never(twin, machine, tmp_path):
    respond(twin, tmp_path / "out", [], 2, [], force=False)
    with pytest.raises(UsageError, match="--force"):
        respond(twin, tmp_path / "out", [], 1, [], force=False)
    respond(twin, tmp_path / "out", [], 1, [], force=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [LIST, "response.json", "twin-cached-1.trace"]
    (tmp_path / "out" / "mine.trace").mkdir()
    respond(twin, tmp_path / "out", [], 1, [], force=True)
    assert (tmp_path / "out" / "mine.trace").is_dir()


def test_a_folder_of_traces_is_no_response_that_force_replaces(twin, machine, tmp_path):
    (tmp_path / "traces" / "job.trace").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds other files"):
        respond(twin, tmp_path / "traces", [], 1, [], force=True)
    assert (tmp_path / "traces" / "job.trace").is_dir()


def test_a_job_whose_data_or_trace_is_gone_is_told_in_one_line(twin, machine, tmp_path):
    for path in (tmp_path / "jobs_data").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(IotwinError, match="none of the files that the job read"):
        respond(twin, tmp_path / "out", [], 1, ["true"], force=False)
    for unusable in ("{}", "[]", '{"a": 1}'):
        (twin / "round-1" / "similarity.json").write_text(unusable)
        with pytest.raises(IotwinError, match="does not name the trace"):
            respond(twin, tmp_path / "out", [], 1, ["true"], force=False)
    (twin / "round-1" / "similarity.json").write_text(json.dumps({"a": str(tmp_path / "gone.trace")}))
    with pytest.raises(IotwinError, match=r"names the job's data set: .*gone.trace: no such trace"):
        respond(twin, tmp_path / "out", [], 1, ["true"], force=False)


@pytest.mark.parametrize("change", ["warm", "read=", "read=fast", "requests=0", "requests=2.5", "cache", "cold=1", "", "cold,"])
def test_a_change_that_is_none_is_refused_in_one_line(twin, tmp_path, change):
    done = call("twin", "respond", twin, "-o", tmp_path / "out", "--change", change)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()


def test_changes_are_read_as_they_are_written():
    asked = parse_change("read=25MB/s, requests=200,cache=64MiB")
    assert asked == StorageChange("read=25MB/s, requests=200,cache=64MiB", True, 25_000_000, 200, 64 << 20)
    assert parse_change("cold") == StorageChange("cold", True) and not UNCHANGED.is_cold


def test_the_real_eviction_and_its_opposite_leave_the_file_as_it_is(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content" * 1000)
    module.evict(path)
    module.fetch(path)
    assert path.read_bytes() == b"content" * 1000


READ = 28 * (4 << 20)  # bytes of its data set that a run of Job reads, in less than 5 s


@pytest.mark.parametrize(
    ("change", "disks", "says"),
    [
        ("cold", DeviceReads(READ // 2, 10), "not cold: the disks gave it 56 MiB of the 112 MiB"),
        ("read=1GB", DeviceReads(0, 0), "not cold: the disks gave it 0 B"),
        ("read=2MB", DeviceReads(READ, 10), "not capped: it read 112 MiB in"),
        ("read=20MB", DeviceReads(10 * READ, 10), "not capped"),
        ("requests=60", DeviceReads(READ, 5000), "not capped: the disks served 5,000 requests in"),
    ],
)
def test_a_row_whose_change_was_not_in_force_says_so_and_has_no_ratio(twin, machine, tmp_path, change, disks, says):
    machine.disks = disks
    arguments = ("twin", "respond", twin, "-o", tmp_path / "out", "--change", change)
    done = call(*arguments, "--job", "true")
    row = json.loads((tmp_path / "out" / "response.json").read_text())["changes"][1]
    assert [text.partition(":")[0] for text in row["not_in_force"]] == ["job", "twin"] and says in row["not_in_force"][0]
    assert row["ratio"] is None and row["first_epoch_ratio"] is None and row["twin"]["seconds"] > 0
    assert f"{change} was not in force: {row['not_in_force'][1]}" in done.stdout.splitlines()


def test_a_run_outside_of_the_limit_on_memory_had_all_the_cache(twin, machine, tmp_path):
    machine.memory_bytes = 0
    (row,) = respond(twin, tmp_path / "out", [parse_change("cache=8MiB")], 1, [], force=False)["changes"][1:]
    assert row["not_in_force"] == [
        "twin: its page cache was not limited: no task of it was found in the control group that limits memory"
    ]


def test_a_change_that_was_in_force_is_not_doubted(twin, machine, tmp_path):
    machine.disks = DeviceReads(READ, 200)
    changes = [parse_change(text) for text in ("cold", "read=100MB", "requests=1000", "cache=8MiB")]
    document = respond(twin, tmp_path / "out", changes, 1, ["true"], force=False)
    assert [(row["not_in_force"], row["caveats"]) for row in document["changes"]] == [([], [])] * 5
    assert all(row["ratio"] == pytest.approx(1) for row in document["changes"])


def test_what_makes_the_ratios_weak_is_said_of_the_row_and_below_the_table(twin, machine, tmp_path):
    machine.crowded, machine.disks = {"job"}, None
    (twin / "summary.json").write_text(json.dumps(SUMMARY | {"noise_floor": 0.82}))
    done = call("twin", "respond", twin, "-o", tmp_path / "out", "--change", "cold", "--job", "true")
    document = json.loads((tmp_path / "out" / "response.json").read_text())
    assert "0.82" in document["caveats"][0] and "proves little" in document["caveats"][0]
    crowded, unknown, *_ = document["changes"][1]["caveats"]
    assert crowded.startswith("the job's machine was crowded") and unknown.startswith("whether the reads of the job were cold")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("conclusion: the twin takes as long as the job, within 5%, on 2 of 2 kinds of storage; furthest is ")
    assert last.endswith("the machine was crowded, so run it again on an idle machine")
    assert f"caveat: cached, cold: {crowded}" in done.stdout and f"caveat: {document['caveats'][0]}" in done.stdout


def test_bytes_that_are_read_again_are_cold_once(tmp_path):
    made = Made()
    made.process(1, 0, "rank")
    files = [made.file(f"/d/{name}", size=1 << 20) for name in "ab"]
    ms = 1.0
    for file, offset, size in ((0, 0, 100), (0, 50, 100), (0, 20, 10), (0, 500, 50), (1, 0, 70), (0, 0, 100)):
        ms = made.call(ms, 1, "pread64", files[file], offset, size)
    assert reading_of(made.trace(tmp_path / "t")).size_bytes == 150 + 50 + 70
