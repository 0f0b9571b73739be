"""Metrics: against a naive count of the same records, as OpenMetrics defines its text, and of real jobs against their traces."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.raw import records
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.syscalls import NUMBER_OF_OP
from iotwin.tracing_tools.recorder import live_tally
from iotwin.tracing_tools.recorder.end_conditions import Until
from iotwin.tracing_tools.recorder.live_tally import KINDS, LiveTally
from iotwin.tracing_tools.recorder.openmetrics import HELPS, MetricsPage, metric_lines, open_metrics
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.tracing_tools.recorder.stall_watch import StallWatch
from tests.conftest import ROOT
from tests.processes import wait_for

RANK, LOADER, HELPER = 40, 41, 50  # pids
FILES = {7: (b"/data/a.npy", "dataset"), 8: (b"/ckpt/model.pt", "checkpoint"), 9: (b"/usr/lib/x.so", "library")}


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples by name and labels, as Prometheus's own client reads them; it refuses what is no OpenMetrics."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, tuple(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def opened(inode: int, path: bytes, size: int = 1000) -> bytes:
    return records.pack_name(records.NameRecord(5, records.NAME_OPENED, 1, 1, inode=inode, device=1, size=size, text=path))


def life(type_: int, pid: int, parent: int = 1, text: bytes = b"x", time_ns: int = 5) -> bytes:
    return records.pack_name(records.NameRecord(time_ns, type_, pid, pid, parent=parent, text=text))


def calls(count: int, seed: int) -> np.ndarray:
    draw, made = np.random.default_rng(seed), np.zeros(count, records.EVENT)
    ops = ["read", "pread64", "write", "openat", "poll", "fsync"]
    made["call_flags_cpu"] = [records.pack_call(NUMBER_OF_OP[op], 8) for op in draw.choice(ops, count)]
    made["duration_ns"], made["result"] = 2 ** draw.uniform(0, 40, count), draw.integers(-20, 1 << 20, count)
    made["inode"], made["device"] = draw.choice([0, *FILES], count), 1
    made["device"][made["inode"] == 0] = 0
    made["pid"] = made["tid"] = draw.choice([RANK, LOADER, HELPER], count)
    made["start_ns"] = draw.integers(1, 10**12, count)
    return made


@pytest.fixture
def tally(monkeypatch):
    monkeypatch.setattr(live_tally, "_rank_in_environment", {RANK: 3}.get)
    made = LiveTally()
    made.add_names(life(records.NAME_FORK, RANK) + life(records.NAME_EXEC, RANK) + life(records.NAME_FORK, LOADER, RANK))
    made.add_names(b"".join(opened(inode, path) for inode, (path, _) in FILES.items()))
    return made


def test_metrics_equal_a_naive_count(tally):
    """Several batches, a rank by its environment, its loader by its parent, another process without either."""
    batches = [calls(count, seed) for seed, count in enumerate((0, 1, 700, 3000))]
    for batch in batches:
        tally.add_events(batch)
    now_ns, first = 10**14, batches[2]
    ops = first["call_flags_cpu"] & 1023
    reads = np.isin(ops, [NUMBER_OF_OP["read"], NUMBER_OF_OP["pread64"]]) & (first["inode"] == 7)
    polls = ops == NUMBER_OF_OP["poll"]
    begins = {
        3: first["start_ns"][np.isin(first["pid"], (RANK, LOADER)) & reads | (first["pid"] == RANK) & polls].min(),
        0: first["start_ns"][(first["pid"] == HELPER) & (reads | polls)].min(),
    }
    name_of = {number: op for op, number in NUMBER_OF_OP.items()}
    expected: Counter = Counter()
    buckets = [2**octave for octave in range(10, 35, 2)]
    for call in np.concatenate(batches):
        op = name_of[int(call["call_flags_cpu"]) & 1023]
        rank = (("rank", "3" if call["pid"] in (RANK, LOADER) else "0"),)
        kind = FILES[int(call["inode"])][1] if call["inode"] else "none"
        cell = (*rank, ("op", op), ("kind", kind))
        expected["iotwin_io_calls_total", cell] += 1
        if op in ("read", "pread64", "write"):
            expected["iotwin_io_bytes_total", cell] += max(int(call["result"]), 0)
        for le in [bound / 1e9 for bound in buckets if call["duration_ns"] < bound] + ["+Inf"]:
            expected["iotwin_io_seconds_bucket", (*rank, ("op", op), ("le", str(le)))] += 1
        expected["iotwin_io_seconds_count", (*rank, ("op", op))] += 1
        expected["iotwin_io_seconds_sum", (*rank, ("op", op))] += int(call["duration_ns"]) / 1e9
        is_read = op in ("read", "pread64") and kind == "dataset"
        if call["pid"] != LOADER and (op == "poll" or is_read):  # HELPER reads the data set, too, so it counts as rank 0
            expected["iotwin_stall_seconds_total", rank] += int(call["duration_ns"]) / 1e9
    expected["iotwin_lost_events_total", ()] = 5
    for number, begin_ns in begins.items():
        rank = (("rank", str(number)),)
        trains_s = expected["iotwin_training_seconds_total", rank] = (now_ns - int(begin_ns)) / 1e9
        expected["iotwin_au_ratio", rank] = round(1 - expected["iotwin_stall_seconds_total", rank] / trains_s, 6)
    found = parsed("\n".join(metric_lines(tally, {"ring_full": 2, "entry_missed": 3}, now_ns)) + "\n")
    assert {key: value for key, value in found.items() if value} == pytest.approx({k: v for k, v in expected.items() if v})
    assert {name for name, _ in found} >= {"iotwin_io_bytes_total", "iotwin_io_calls_total"} and tally.running_ranks() == 2
    tally.add_names(life(records.NAME_EXIT, HELPER, time_ns=int(begins[0]) + 7 * 10**9))
    assert tally.running_ranks() == 1 and tally.training_s(now_ns)[0] == pytest.approx(7)
    tally.add_names(life(records.NAME_FORK, HELPER, time_ns=now_ns))  # another process has its pid
    tally.add_names(life(records.NAME_FORK, RANK, time_ns=int(begins[3]) + 9 * 10**9))  # the end of the first was lost
    assert tally.running_ranks() == 0 and tally.training_s(now_ns) == pytest.approx({0: 7, 3: 9})


def test_the_first_read_or_write_decides_a_files_kind(tally):
    """Also of a file that was empty when the job opened it, and whose name leaves open what it is."""
    tally.add_names(opened(10, b"/out/state.bin", 0) + opened(11, b"/in/state.bin"))
    made = calls(4, 1)
    made["inode"], made["device"] = [10, 11, 10, 11], 1
    for ops in (["openat", "openat"], ["write", "read"], ["read", "write"]):
        made["call_flags_cpu"] = [records.pack_call(NUMBER_OF_OP[op], 8) for op in ops * 2]
        tally.add_events(made)
    counted = {KINDS[kind]: int(number) for kind, number in enumerate(tally.calls.sum(0)) if number}
    assert counted == {"temporary": 2, "dataset": 6, "checkpoint": 4}


def test_an_empty_recording_has_every_family():
    found = "\n".join(metric_lines(LiveTally(), {}, 0)) + "\n"
    assert parsed(found) == {("iotwin_lost_events_total", ()): 0}
    assert re.findall(r"# TYPE (\w+) ", found) == list(HELPS)


def test_the_number_of_files_in_memory_is_bounded(tally, monkeypatch):
    monkeypatch.setattr(live_tally, "_MOST_FILES", 100)
    batch = calls(1000, 1)
    batch["inode"] = 1000 + np.arange(1000)
    tally.add_names(b"".join(opened(inode, b"/data/%d.npy" % inode) for inode in batch["inode"].tolist()))
    tally.add_events(batch)
    assert max(len(tally.file_bytes), len(tally._kind_of), len(tally._opened)) <= 100 and tally.calls.sum() == 1000
    assert tally.name((1999, 1, 0)) == "/data/1999.npy" and tally.name((1000, 1, 0)) is None


def test_a_file_is_replaced_whole(tally, tmp_path, capsys):
    page = MetricsPage(open_metrics(str(tmp_path / "job.prom")))
    page.update(tally, {})
    before = (tmp_path / "job.prom").stat().st_ino
    tally.add_events(calls(10, 1))
    page.update(tally, {})
    assert sum(value for (name, _), value in parsed((tmp_path / "job.prom").read_text()).items() if "calls" in name) == 10
    assert (tmp_path / "job.prom").stat().st_ino != before and [path.name for path in tmp_path.iterdir()] == ["job.prom"]
    (tmp_path / "job.prom").unlink()
    tmp_path.rename(tmp_path.with_name("gone"))
    page.update(tally, {})
    page.update(tally, {})
    assert capsys.readouterr().err.count("the metrics cannot be written") == 1
    tmp_path.with_name("gone").rename(tmp_path)


def test_a_port_serves_the_last_metrics_on_the_loopback_address(tally, capsys):
    output = open_metrics("0")
    host, port = output.listener.getsockname()
    assert host == "127.0.0.1" and capsys.readouterr().err == f"metrics: http://127.0.0.1:{port}/metrics\n"
    with pytest.raises(UsageError, match="in use"):
        open_metrics(str(port))
    page = MetricsPage(output)
    tally.add_events(calls(10, 1))
    page.update(tally, {})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert parsed(answer.read().decode())["iotwin_lost_events_total", ()] == 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/other")
    with open_metrics("localhost:0").listener as other:
        assert other.getsockname()[0] in ("127.0.0.1", "::1")
    for wrong in ("99999", "no.such.host.invalid:80", "nowhere/metrics.prom"):
        with pytest.raises(IotwinError):
            open_metrics(wrong)


def test_a_stall_is_the_mean_share_of_the_ranks_that_run():
    tally, watch, second = LiveTally(), StallWatch(0.3, 10 * 10**9), 10**9
    tally._mains = {1: 0, 2: 0}
    for now in range(30):  # rank 0 waits all the time, the other never: half of the time in the mean
        tally.stall_s[0] = float(now)
        assert watch.is_stalled(tally, now * second) == (now >= 10)
    for now in range(30, 60):  # for a fifth of the time: 0.1 in the mean
        tally.stall_s[0] += 0.2
        is_stalled = watch.is_stalled(tally, now * second)
        assert is_stalled == (now < 34)  # 6.8 s of 10 at 33, less than 6 s afterwards
    tally._ended[1] = 0
    tally.stall_s[0] += 3.5
    assert watch.is_stalled(tally, 60 * second)  # one rank is left
    tally._ended[2] = 0
    assert not watch.is_stalled(tally, 61 * second)


@pytest.mark.root
def test_metrics_of_a_real_job_equal_its_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "5")
    Path("sample.npy").write_bytes(bytes(1 << 16))
    code = "import os; fd = os.open('sample.npy', 0); [os.pread(fd, 100, i) for i in range(3000)]; print('x' * 500)"
    options = TraceOptions(forward_output=False, metrics="job.prom", ring_bytes=1 << 16)
    made = trace_command([sys.executable, "-S", "-c", code], Path("t"), options)
    found = parsed(Path("job.prom").read_text())
    assert not made.lost_events and (Path("t") / "logs" / "stdout").read_text() == "x" * 500 + "\n"
    by_op: Counter = Counter()
    for (name, labels), value in found.items():
        if name == "iotwin_io_calls_total":
            assert dict(labels)["rank"] == "5"
            by_op[dict(labels)["op"]] += int(value)
    assert by_op.total() == made.seen and by_op["pread64"] >= 3000
    data = (("rank", "5"), ("op", "pread64"), ("kind", "dataset"))
    assert found["iotwin_io_bytes_total", data] == 300_000 and found["iotwin_io_calls_total", data] == 3000
    stalled_s, trained_s, au = (
        found[f"iotwin_{name}", (("rank", "5"),)] for name in ("stall_seconds_total", "training_seconds_total", "au_ratio")
    )
    assert 0 < stalled_s < trained_s and au == pytest.approx(1 - stalled_s / trained_s, abs=1e-6)
    assert made.events == len(Trace(Path("t")).events_frame())


@pytest.mark.root
def test_a_stall_ends_the_recording_and_not_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sample.npy").write_bytes(bytes(100))
    code = """
import os, select, time
os.read(os.open("sample.npy", 0), 100)
end = time.monotonic() + 100
while not os.path.exists("t/events.parquet") and time.monotonic() < end:
    select.select([], [], [], 0.05)
print("done")
"""
    options = TraceOptions(forward_output=False, until=Until("stall", 0.1, 1))
    made = trace_command([sys.executable, "-S", "-c", code], Path("t"), options)
    assert made.exit_status == 0 and (Path("t") / "logs" / "stdout").read_text() == "done\n"
    assert any("ended at a stall" in text for text in made.notes)


DASHBOARD = ROOT / "deploy" / "grafana" / "iotwin.json"


def queries() -> list[str]:
    return [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


def test_the_dashboard_queries_exactly_these_metrics():
    asked = {name for query in queries() for name in re.findall(r"\biotwin_\w+", query)}
    of_kind = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",), "gauge": ("",)}
    suffixes = {name: of_kind[kind] for name, (kind, _) in HELPS.items()}
    assert asked == {name + suffix for name, found in suffixes.items() for suffix in found}
    labels = {name for query in queries() for name in re.findall(r"\bby \(([\w, ]+)\)", query)}
    assert {each for names in labels for each in names.split(", ")} <= {"rank", "op", "kind", "le", "instance"}


def test_a_real_prometheus_reads_the_metrics_and_answers_the_dashboard(tally, tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus here: apt-get install prometheus provides one")
    output = open_metrics("0")
    page = MetricsPage(output)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    target = f"127.0.0.1:{output.listener.getsockname()[1]}"
    jobs = f"[{{job_name: iotwin, static_configs: [{{targets: ['{target}']}}]}}]"
    (tmp_path / "p.yml").write_text(f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs: {jobs}")
    address = f"127.0.0.1:{port}"
    command = [
        program,
        f"--config.file={tmp_path}/p.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address={address}",
    ]

    def ask(query: str) -> list[dict]:
        url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["data"]["result"]

    def is_there() -> bool:
        assert server.poll() is None
        tally.add_events(calls(200, int(time.monotonic() * 1000)))
        page.update(tally, {})
        try:
            return all(ask(re.sub(r"\$(instance|rank)", ".*", query).replace("$__rate_interval", "1m")) for query in queries())
        except OSError:
            return False

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(is_there, "an answer to every query of the dashboard")
            shown = ask("sum(iotwin_io_calls_total)")
            assert 0 < float(shown[0]["value"][1]) <= tally.calls.sum()
        finally:
            server.terminate()
