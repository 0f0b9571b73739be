"""The report's file: whole, self-contained, bounded, and inert whatever the names in a trace."""

import base64
import json
import re
import zlib
from argparse import ArgumentParser
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.commands.report import ReportCommand
from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.hosts.make_set import make_set
from iotwin.trace_store.hosts.set_file import PIDS_PER_HOST
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.report import report_page as report_module
from iotwin.trace_visuals.report import timeline_rows
from iotwin.trace_visuals.report.diagnosis import describe, headline
from iotwin.trace_visuals.report.packing import pack, pack_amount, pack_rising, pack_share, pack_whole
from iotwin.trace_visuals.report.report_page import write_report
from tests.conftest import run_iotwin
from tests.synthetic import MILLISECOND, Job, write_job
from tests.trace_store.test_host_sets import make_hosts
from tests.trace_visuals.common import make_calls, stall
from tests.trace_visuals.hostile import COMMAND, MARK, NAMES, write_hostile


class _Page(HTMLParser):
    """What an HTML parser makes of a page: its elements, attributes, and the text of its scripts and data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.urls, self.scripts, self._open = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.urls += [value for name, value in attrs if name in ("src", "href", "action", "data") and value]
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
            self._open = tag

    def handle_endtag(self, tag):
        if tag == self._open:
            self._open = None

    def handle_data(self, data):
        if self._open:
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)


def _unpack(packed):
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype=np.dtype(packed["type"]).newbyteorder("<"))
    return values.astype(float) * packed["scale"]


def _document(path):
    page = _Page(path.read_text("utf-8"))
    return json.loads(next(text for kind, text in page.scripts if kind == "application/json"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def traces(place):
    return [write_job(place / "real.trace", Job()), write_job(place / "twin.trace", Job(seed=2, lost={"ring buffer": 1}))]


@pytest.fixture(scope="module")
def page(place, traces):
    write_report(traces, place / "report.html")
    return place / "report.html"


def test_page_fetches_nothing_and_allows_no_other_script(page):
    text = page.read_text("utf-8")
    parsed = _Page(text)
    assert parsed.urls == [] and parsed.tags.count("script") == 2 and "link" not in parsed.tags
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(
        r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function|fetch|XMLHttpRequest|import)\s*\(", text
    )
    assert "innerHTML" not in text and "default-src 'none'" in text and "unsafe" not in text


def test_nothing_half_written_is_left(page, place):
    assert sorted(file.name for file in place.iterdir()) == ["real.trace", "report.html", "twin.trace"]


def test_bins_on_the_page_hold_every_byte_and_call(page, traces):
    trace = _document(page)["traces"][0]
    events = pq.read_table(traces[0] / "events.parquet").to_pandas()
    lanes, count = trace["lanes"], trace["lanes"]["count"]
    calls, size, busy = (_unpack(lanes[name]).reshape(-1, count) for name in ("calls", "size_bytes", "busy"))
    for lane, op in ((0, "read"), (1, "write"), (2, "openat")):
        mine = events[events["op"].astype(str) == op]
        assert calls[lane].sum() == len(mine)
        assert size[lane].sum() == (mine["result"].sum() if op != "openat" else 0)
    assert busy.min() >= 0 and busy.max() <= 1 + 1e-9 and len(lanes["names"]) == len(calls)


def test_every_call_is_on_the_page(page, traces):
    calls = _document(page)["traces"][0]["calls"]
    events = pq.read_table(traces[0] / "events.parquet").to_pandas()
    shown = events[events["op"].astype(str) != "close"]
    assert np.cumsum(_unpack(calls["start"])).tolist() == (shown["start_ns"] - events["start_ns"].min() + 10**9).tolist()
    assert _unpack(calls["duration"]).tolist() == shown["duration_ns"].tolist()
    names = [calls["files"][int(place)] for place in _unpack(calls["file"])]
    paths = pq.read_table(traces[0] / "files.parquet")["path"].to_pylist()
    assert names == [paths[int(file_id)] for file_id in shown["file_id"]]


def test_each_host_of_a_set_has_a_row_with_its_calls(tmp_path, monkeypatch):
    make_hosts(tmp_path / "set", 3, files=3, epochs=1)
    make_set(tmp_path / "set", [])
    whole = Trace(tmp_path / "set")
    calls = {f"host {name}": 0 for name in ("node0", "node1", "node2")}
    storage = set(whole.files().query("kind == 'dataset' or kind == 'checkpoint'")["file_id"])
    for pid, file_id in whole.events_frame()[["pid", "file_id"]].itertuples(index=False):
        calls[f"host node{pid // PIDS_PER_HOST}"] += file_id in storage
    write_report([tmp_path / "set"], tmp_path / "page.html")
    (trace,) = _document(tmp_path / "page.html")["traces"]
    names, counts = trace["lanes"]["names"], _unpack(trace["lanes"]["calls"]).reshape(-1, trace["lanes"]["count"]).sum(1)
    found = {name["title"]: count for name, count in zip(names, counts, strict=True) if name["section"] == "host"}
    assert found == calls and trace["hosts_left_out"] == 0
    monkeypatch.setattr(timeline_rows, "_MOST_HOSTS", 2)
    (busiest, *_, first) = whole.processes()["pid"].sort_values(ascending=False).tolist()
    plan = timeline_rows.LanePlan(whole.processes(), [busiest, first])
    assert [name.title for name in plan.names if name.section == "host"] == ["host node0", "host node2"]
    calls = make_calls([0, 1, 2], [1, 1, 1], pid=[busiest, first, busiest], storage=[True, True, False])
    assert plan.hosts_left_out == 1 and plan.lanes(calls)[2].tolist() == [len(plan.names) - 1, len(plan.names) - 2, -1]


def test_comparison_is_tracesim_s(page):
    comparison = _document(page)["comparisons"][0]
    assert (comparison["a"], comparison["b"]) == ("real.trace", "twin.trace")
    assert 0 <= comparison["overall"] <= 1 and len(comparison["dimensions"]) >= 5
    halved = next(control for control in comparison["controls"] if control[0] == "computation halved")
    assert 0 < halved[1] < 1 and halved[2:] == [None, None] and comparison["aspects"] == []  # without reruns nobody knows
    for dimension in comparison["dimensions"]:
        assert 0 <= dimension["score"] <= 1 and ("bars" in dimension) != ("curves" in dimension)


def test_with_reruns_the_page_says_what_the_test_would_have_noticed(traces, tmp_path):
    reruns = [write_job(tmp_path / f"rerun-{seed}.trace", Job(seed=seed)) for seed in (3, 4)]
    write_report(traces, tmp_path / "r.html", repeats=reruns)
    comparison = _document(tmp_path / "r.html")["comparisons"][0]
    assert {control[0]: control[3] for control in comparison["controls"]}["computation halved"] is True
    assert "as far from A as reruns of A" in comparison["test"][0] and "half the computation" in comparison["test"][1]
    margins = {name: margin for name, _, margin in comparison["aspects"]}
    assert 0 < margins["overall"] < 1


def test_a_response_is_a_table_of_the_page(traces, tmp_path):
    row = {"change": "cold", "of": "epoch", "job": {"seconds": 2.0}, "twin": {"seconds": 2.1}, "ratio": 1.05}
    (tmp_path / "response.json").write_text(json.dumps({"changes": [row, {**row, "change": "<b>", "job": None, "ratio": None}]}))
    write_report(traces[:1], tmp_path / "r.html", response=tmp_path / "response.json")
    assert _document(tmp_path / "r.html")["response"]["rows"] == [
        ["cold", "epoch", 2e9, 2.1e9, 1.05, None],
        ["<b>", "epoch", None, 2.1e9, None, None],
    ]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"changes": [{"change": 1}]}', '{"changes": [NaN]}'])
def test_a_file_that_is_no_response_is_named_in_one_line(traces, tmp_path, content):
    (tmp_path / "response.json").write_text(content)
    with pytest.raises(IotwinError, match="is no response of iotwin twin respond"):
        write_report(traces[:1], tmp_path / "r.html", response=tmp_path / "response.json")
    with pytest.raises(IotwinError, match="no such file"):
        write_report(traces[:1], tmp_path / "r.html", response=tmp_path / "absent.json")


def test_traces_that_cannot_be_compared_still_make_a_page(place, traces, tmp_path):
    idle = write_job(tmp_path / "idle.trace", Job(files=0, evaluation_files=0, checkpoint_every=0, epochs=1))
    write_report([traces[0], idle], tmp_path / "r.html")
    assert "verdict" in _document(tmp_path / "r.html")["comparisons"][0]


def test_hostile_names_stay_data(tmp_path):
    path = write_hostile(tmp_path / "<script>alert(1)<!--.trace")
    write_report([path], tmp_path / "r.html")
    parsed = _Page((tmp_path / "r.html").read_text("utf-8"))
    assert parsed.tags.count("script") == 2 and "img" not in parsed.tags and parsed.urls == []
    trace = _document(tmp_path / "r.html")["traces"][0]
    assert set(NAMES) <= {row[0] for row in trace["files"]["rows"]}
    assert trace["command"] == " ".join(COMMAND) and MARK in trace["loss"]


def test_many_calls_make_a_bounded_page(tmp_path, monkeypatch):
    path = write_job(tmp_path / "t.trace", Job(files=200, file_bytes=2 << 20, read_bytes=4096, epochs=3))
    monkeypatch.setattr(report_module, "_CALLS", 1000)
    write_report([path], tmp_path / "bins.html")
    assert _document(tmp_path / "bins.html")["traces"][0]["calls"] is None
    assert (tmp_path / "bins.html").stat().st_size < 1_500_000


def test_losses_and_recovery_are_told(page):
    assert "1 event LOST" in _document(page)["traces"][1]["loss"] and _document(page)["traces"][0]["loss"] == ""


@pytest.mark.parametrize(("name", "error"), [("r.png", UsageError), ("none/r.html", IotwinError)])
def test_bad_outputs_are_refused(traces, tmp_path, name, error):
    with pytest.raises(error):
        write_report(traces, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_too_many_traces_are_refused(traces, tmp_path):
    with pytest.raises(UsageError, match="at most 8"):
        write_report(traces * 5, tmp_path / "r.html")


def test_the_command_says_what_it_found(traces, tmp_path, capsys):
    command, parser = ReportCommand(), ArgumentParser()
    command.prepare_parser(parser)
    outcome = command.run(parser.parse_args([str(traces[1]), "-o", str(tmp_path / "r.html")]))
    command.show(outcome.document)
    out = capsys.readouterr().out
    assert "events lost: 1)" in out and "To keep this pace storage must give" in out and len(out.splitlines()) <= 6
    json.dumps(outcome.document)


def test_a_stalled_sampler_is_told_and_marked(tmp_path):
    path = write_job(tmp_path / "stalled.trace", Job(gpu=True))
    stall(path, "cpu")
    analysis = write_report([path], tmp_path / "r.html")[0]
    findings = {finding.topic: finding.text for finding in describe(analysis)}
    assert (
        findings["Gaps"].startswith("There are no samples of CPU for ") and "in 1 stretch, the longest from" in findings["Gaps"]
    )
    cpu, *others = _document(tmp_path / "r.html")["traces"][0]["samples"]
    assert len(cpu["gaps"]) == 1 and cpu["gaps"][0][0] < cpu["gaps"][0][1] and not any(graph["gaps"] for graph in others)


@pytest.mark.parametrize(
    ("job", "topic", "expected"),
    [
        (Job(compute_ns=MILLISECOND), "What dominates", "Reads take"),
        (Job(compute_ns=900 * MILLISECOND, files=4), "What dominates", "it is not what limits this job"),
        (Job(checkpoint_every=0), "Checkpoints", None),
        (Job(), "Gaps", None),
        (Job(), "What to improve", "reads/s on average over training ("),
        (Job(), "Checkpoints", "3 checkpoint files, 6.01 MiB in 12 writes that took 600 us and 3 syncs that took 15 ms"),
        (Job(read_bytes=4096, file_bytes=65536), "Request sizes", "0% of the bytes and 0% of the time in reads: request rate"),
        (Job(), "Request sizes", "100% of the calls, 100% of the bytes and 100% of the time in reads: bandwidth"),
        (Job(epochs=4, evaluation_files=0), "Working set", "24 data-set files, 96 MiB in all; bytes read are 4.00 times that"),
    ],
)
def test_words_say_what_the_job_does(tmp_path, job, topic, expected):
    analysis = write_report([write_job(tmp_path / "t.trace", job)], tmp_path / "r.html")[0]
    findings = {finding.topic: finding.text for finding in describe(analysis)}
    if expected is None:
        assert topic not in findings
    else:
        assert expected in findings[topic], findings[topic]


@pytest.mark.parametrize(("budget", "title", "share"), [(400, "budget 400 B", 0.75), (None, "memory, of 300 B", 1.0)])
def test_memory_of_tensors_has_a_row_against_the_budget(tmp_path, budget, title, share):
    job = Job()
    path = write_job(tmp_path / "t.trace", job)
    (path / "logs").mkdir(exist_ok=True)
    points = [("tensor_bytes", 300, job.start_ns + 100 * MILLISECOND), ("tensor_bytes", 100, job.start_ns + 800 * MILLISECOND)]
    points += [] if budget is None else [("memory_budget", budget, 0)]
    with (path / "logs" / "stdout").open("a") as log:
        for key, value, at_ns in (*points, ("tensor_bytes", "many", 5), ("tensor_bytes", 7, None)):
            event = {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": {"at_ns": at_ns}}
            log.write(f":::MLLOG {json.dumps(event)}\n")
    write_report([path], tmp_path / "r.html")
    graph = _document(tmp_path / "r.html")["traces"][0]["samples"][-1]
    assert (graph["title"], graph["lines"]) == (title, ["tensors"])
    shares = _unpack(graph["curves"]["tensors"])
    assert shares[0] == 0 and max(shares) == pytest.approx(share, abs=0.01)
    assert share / 3 == pytest.approx(min(each for each in shares if each > 0), abs=0.01)


def test_recomputing_has_a_row_and_a_sentence_where_its_parts_are_logged(tmp_path):
    job = Job()
    path = write_job(tmp_path / "t.trace", job)
    (path / "logs").mkdir(exist_ok=True)
    parts = (("base_compute", 0, 600), ("remat_compute", 600, 300), ("search", 900, 60), ("cost", 960, 40))
    with (path / "logs" / "stdout").open("a") as log:
        for rank in range(2):
            for key, begin, length in parts:
                span = {"start": job.start_ns + begin * MILLISECOND, "duration": length * MILLISECOND}
                event = {"time_ms": 1, "event_type": "INTERVAL_END", "key": key, "value": span, "metadata": {"rank": rank}}
                log.write(f":::MLLOG {json.dumps(event)}\n")
    analysis = write_report([path], tmp_path / "r.html")[0]
    findings = {finding.topic: finding.text for finding in describe(analysis)}
    assert "60.0% is first computing, 30.0% recomputing and 10.0% the search" in findings["Recomputing"]
    graph = _document(tmp_path / "r.html")["traces"][0]["samples"][-1]
    assert (graph["title"], graph["stacked"], graph["lines"]) == ("recompute", ["base", "recomputed", "search"], [])
    first = [_unpack(graph["curves"][name])[0] for name in graph["stacked"]]
    assert first == pytest.approx([1.0, 0.0, 0.0], abs=0.01)  # both ranks compute all the time


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job(evaluation_files=0), ["Read 288 MiB from 24 data-set files and wrote 6.01 MiB to 3 checkpoint files, in "]),
        (Job(), ["A read is under way for "]),
        (Job(log_waits=True, compute_ns=900 * MILLISECOND, files=4), ["It hardly waits for data ("]),
        (Job(log_waits=True, compute_ns=MILLISECOND), ["and storage is busy for much of that: faster storage"]),
        (Job(checkpoint_every=0, files=2, evaluation_files=0), ["Read 24 MiB from 2 data-set files, in ", " in the busiest "]),
        (Job(files=0, evaluation_files=0, checkpoint_every=0), ["Read no data set and wrote no checkpoint, in "]),
    ],
)
def test_the_first_words_say_what_the_job_did_and_whether_it_waits(tmp_path, job, expected):
    analysis = write_report([write_job(tmp_path / "t.trace", job)], tmp_path / "r.html")[0]
    for part in expected:
        assert part in " ".join(headline(analysis)), headline(analysis)
    assert _document(tmp_path / "r.html")["traces"][0]["headline"] == headline(analysis)
    verdict = {"limited_by": "loaders", "sentence": "Limited by the loaders."}
    assert headline(analysis, verdict)[1] == "Limited by the loaders." and "waits for data" not in " ".join(
        headline(analysis, verdict)
    )


def test_of_a_command_that_failed_that_comes_first(tmp_path):
    made = write_job(tmp_path / "t.trace", Job(epochs=1))
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps(manifest | {"exit_status": 3}))
    analysis = write_report([made], tmp_path / "r.html")[0]
    assert headline(analysis)[0] == "The command failed with exit status 3."


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_whole_numbers_survive_packing(values):
    back = _unpack(pack_whole(np.array(values, dtype=np.int64)))
    unit = max(1, -(-max(values, default=0) // (2**32 - 1)))
    assert all(0 <= got - value < unit or got == pytest.approx(value) for got, value in zip(back, values, strict=True))
    assert all((got > 0) == (value > 0) for got, value in zip(back, values, strict=True))


@given(st.lists(st.integers(0, 2**40), max_size=50).map(sorted))
def test_rising_numbers_survive_packing_without_drift(values):
    packed = pack_rising(np.array(values, dtype=np.int64))
    back = np.cumsum(_unpack(packed))
    assert all(0 <= value - got <= packed["scale"] for got, value in zip(back, values, strict=True))


@given(st.lists(st.floats(0, 1), max_size=50), st.floats(1e-6, 1e12))
def test_shares_and_amounts_survive_packing(shares, factor):
    values = np.array(shares)
    np.testing.assert_allclose(_unpack(pack_share(values)), values, atol=2 / 65535)
    amounts = values * factor
    np.testing.assert_allclose(_unpack(pack_amount(amounts)), amounts, atol=factor * 2e-9)
    assert ((_unpack(pack_share(values)) > 0) >= (values > 1e-12)).all()
    assert _unpack(pack(amounts)).tolist() == amounts.tolist()


def test_the_page_names_the_change_that_advise_tested(traces, tmp_path):
    def finding(to, ratio, significant):
        predicted = None if ratio is None else {"step_time_ratio": ratio, "low": ratio, "high": ratio, "runs": 3}
        change = {"setting": "num_workers", "from": 1, "to": to, "where": "DataLoader"}
        return {"kind": "few_loaders", "change": change, "predicted": predicted, "significant": significant}

    def answer(findings, trace=traces[1]):
        (tmp_path / "advice.json").write_text(json.dumps({"trace": str(trace), "findings": findings}))
        done = run_iotwin("report", *traces, "--advise", tmp_path / "advice.json", "-o", tmp_path / "r.html", "--quiet")
        assert done.returncode == 0, done.stderr
        return [dict(each["answers"]).get("What to change?") for each in _document(tmp_path / "r.html")["traces"]]

    usual = answer([finding(4, None, False)])
    best = answer([finding(2, 0.99, False), finding(4, 0.5, True), finding(8, 0.4, True)])
    assert best[0] == usual[0]
    assert (
        best[1]
        == "Change num_workers from 1 to 4 (DataLoader): steps take 0.50 [0.50, 0.50] of the time, in the twin so changed."
    )
    assert answer([finding(2, 0.99, False)])[1].startswith("Nothing that advise tested")
    (tmp_path / "advice.json").write_text(json.dumps({"trace": "/elsewhere", "findings": []}))
    done = run_iotwin("report", traces[0], "--advise", tmp_path / "advice.json", "-o", tmp_path / "r.html")
    assert done.returncode == 2 and "is about /elsewhere, which is not among the traces" in done.stderr
