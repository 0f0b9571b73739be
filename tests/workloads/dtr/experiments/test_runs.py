"""Runs of an experiment with a stand-in for the training: tables, data, statuses, retries, history, resumption, the webhook."""

import csv
import http.client
import itertools
import json
import os
import statistics
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest.mock import Mock

import pytest

from iotwin.commands.dtr.pictures import draw
from iotwin.common.errors import IotwinError, UsageError
from iotwin.workloads.dtr.experiments import trials, webhook
from iotwin.workloads.dtr.experiments.config import read_experiment
from iotwin.workloads.dtr.experiments.stages import run_experiment
from iotwin.workloads.dtr.experiments.trials import ActionResult, Machine
from iotwin.workloads.dtr.simulator.log_manifest import read_manifest
from tests.processes import call, members, one_line
from tests.workloads.dtr.experiments import CONFIG, StandIn, changed, value_of, written

THEIRS = {
    *(f"resnet{layers}" for layers in (20, 32, 44, 56, 110, 1202)), *(f"tv_resnet{layers}" for layers in (18, 34, 50, 101, 152)),
    *(f"tv_densenet{layers}" for layers in (121, 161, 169, 201)), "densenet100", "inceptionv3", "inceptionv4", "unet", "lstm",
    "lstm_encoder", "gru", "gru_encoder", "treelstm", "treelstm_old", "transformer", "transformer_encoder", "unroll_gan",
}  # fmt: skip
UNET_ONLY = {**CONFIG, "models": ["unet"]}


def run(folder, config=CONFIG, stand_in=None, resume=False, url=None, drawn=None):
    stand_in = stand_in or StandIn()
    machine = Machine("tiny", "cpu", stand_in)
    picture = draw if drawn is None else lambda document, path: drawn.append(path.name) or path.write_bytes(b"png")
    document = run_experiment(read_experiment(written(folder, config)), folder / "results", machine, picture, resume, url)
    return document, stand_in


def rows_of(folder, name):
    (path,) = (folder / "results" / "raw").glob(f"*/study/{name}")
    return list(csv.DictReader(path.read_text().splitlines()))


def data_of(folder):
    return [json.loads(path.read_text()) for path in sorted((folder / "results/results/experiments/data/study").iterdir())]


def test_a_whole_experiment(tmp_path):
    """Every run has its table, the failed one an error; data, summary, pictures and the page follow from them."""
    document, stand_in = run(tmp_path)
    assert (document["runs"], document["measured"], document["failed"]) == (10, 10, 1)
    (error,) = document["errors"]
    assert error["file"] == "cmd-1-dtr-fixed-2-1000000.0-unet.csv" and "cannot be kept" in error["message"]
    assert all(status["success"] for status in document["stages"].values())
    results = tmp_path / "results/results/experiments"
    for stage in ("precheck", "run", "analysis", "visualization", "summary"):
        status = json.loads((results / "status/study" / f"{stage}.json").read_text())
        assert status["success"] and "message" in status
    for folder in (results / "graph/study", results / "summary/study", *(tmp_path / "results/raw").glob("*/study")):
        assert json.loads((folder / "status.json").read_text())["success"]
    assert {"start_time", "end_time", "time_delta"} <= json.loads((results / "status/study/run.json").read_text()).keys()
    summary = json.loads((results / "summary/study/summary.json").read_text())
    assert summary["title"] == "Pareto Curve Trial" and "_type_: dtr; " in summary["value"]
    assert "_command_id_: 1" in summary["value"].split("Key:")[0]
    assert "*Results*: 16.667, 16.667, 1.667, _, _, 6.000" in summary["value"]
    assert "*Results*: 25.000, 25.000, _, _, _, 4.000" in summary["value"]  # no baseline has this run's sizes
    pictures = {path.name for path in (results / "graph/study").glob("*.png")}
    assert pictures == {
        "combined-comparison-ratio.png", "combined-breakdown-comparison.png", "throughput-comparison-unet.png",
        "time-breakdown-unet.png",
    }  # fmt: skip
    page = (tmp_path / "results/report.html").read_text()
    assert page.count("data:image/png;base64,") == 4 and "cannot be kept" in page
    assert json.loads((tmp_path / "results/config/experiments/study/config.json").read_text()) == CONFIG
    # 2 inputs of 9 runs, and one input of the run that failed
    assert len(stand_in.calls) == 2 * 9 + 1
    assert all(environment["CUDA_LAUNCH_BLOCKING"] == "1" for environment in stand_in.environments)


def test_a_table_has_the_original_columns_and_only_measured_steps(tmp_path):
    run(tmp_path, UNET_ONLY, drawn=[])
    rows = rows_of(tmp_path, "cmd-1-dtr-fixed-2-4000000.0-unet.csv")
    assert list(rows[0])[:14] == [
        "input", "rep", "num_retries", "time", "gpu_time", "input_mem", "model_mem", "total_mem", "sync_time",
        "base_compute_time", "remat_compute_time", "search_time", "cost_time", "memory_budget",
    ]  # fmt: skip
    assert [(row["input"], row["rep"]) for row in rows] == [(str(i), str(j)) for i in range(2) for j in range(3)]
    first = {key: float(rows[0][key]) for key in ("time", "total_mem", "base_compute_time", "remat_compute_time", "search_time")}
    assert first == pytest.approx(
        {"time": 25, "total_mem": 4, "base_compute_time": 8, "remat_compute_time": 1, "search_time": 0.5}
    )
    assert rows[0]["memory_budget"] == "4000000.0" and json.loads(rows[0]["extra_params"])["height"] == 48
    plain = rows_of(tmp_path, "cmd-0-baseline-2-unet.csv")[0]
    assert (plain["memory_budget"], plain["base_compute_time"], plain["input_mem"]) == ("-1", "", "")


def test_the_statistics_of_the_data_file(tmp_path):
    run(tmp_path, drawn=[])
    (data,) = data_of(tmp_path)
    assert time.strptime(data["timestamp"], "%m-%d-%Y-%H%M") and data["time_delta"]
    by_id = {(model, json.dumps(e["specific_params"].get("ratio", e["specific_params"].get("memory_budget"))), e["command_id"],
              e["specific_params"]["batch_size"]): e for model in ("unet", "lstm") for e in data[model]}  # fmt: skip
    failed = by_id["unet", "1000000.0", 1, 2]
    assert failed["summary"] == "error" and len(data["unet"]) == 7
    ratio = by_id["lstm", "0.5", 1, 5]
    assert ratio["specific_params"]["memory_budget"] == 5_000_000
    assert [each["slowdown"]["median"] for each in ratio["summary"]] == pytest.approx([2.0, 2.0])
    assert by_id["unet", "6000000.0", 2, 3]["summary"][0]["throughput"]["mean"] == pytest.approx(3 / (0.01 / 0.6))
    time_of = by_id["unet", "4000000.0", 1, 2]["summary"][0]["time"]
    assert set(time_of) == {"mean", "median", "std", "mean_conf", "median_conf"} and time_of["std"] == pytest.approx(0)
    assert "input_mem" not in by_id["unet", "4000000.0", 1, 2]["summary"][0]


def test_intervals_contain_the_mean_and_equal_those_of_a_rerun():
    from iotwin.workloads.dtr.experiments.analysis import _statistics

    values = [1.0, 2.0, 4.0, 8.0, 9.0]
    found = _statistics(values, True)
    assert (found["mean"], found["median"], found["std"]) == (4.8, 4.0, pytest.approx(statistics.pstdev(values)))
    means = sorted(sum(drawn) / 5 for drawn in itertools.product(values, repeat=5))  # all resamples, equally likely
    exact = [means[round(len(means) * share)] for share in (0.025, 0.975)]
    assert found["mean_conf"] == pytest.approx(exact, abs=0.15)
    assert found["median_conf"] == [1.0, 9.0] and _statistics(values, True) == found
    assert "mean_conf" not in _statistics(values, False)


def retried(failures, folder, **more):
    stand_in = StandIn()
    stand_in.failures = list(failures)
    command = {
        "type": "dtr",
        "kind": "fixed",
        "memory_budget": 8e6,
        "extra_params": {"retry_on_error": True, "max_retries": 3, **more},
    }
    config = {**UNET_ONLY, "n_inputs": 1, "dtr_settings": {"unet": [command]}}
    return run(folder, config, stand_in, drawn=[])


def test_a_failed_attempt_is_repeated_if_the_configuration_allows_it(tmp_path):
    crashed, too_slow = ActionResult(-11, "", ""), ActionResult(None, "", "")
    document, stand_in = retried([crashed, too_slow], tmp_path)
    assert document["failed"] == 0 and len(stand_in.calls) == 3
    assert {row["num_retries"] for row in rows_of(tmp_path, "*.csv")} == {"2"}
    assert data_of(tmp_path)[0]["unet"][0]["num_retries"] == 2


@pytest.mark.parametrize(
    ("failures", "calls", "message"),
    [
        ([ActionResult(-9, "", "")] * 3, 3, "killed by signal 9"),
        ([ActionResult(None, "", "")] * 3, 3, "took more than 30 s"),
        ([ActionResult(1, "", "Traceback\nRuntimeError: x\n")] * 3, 3, "RuntimeError: x"),
        ([ActionResult(3, "", "")] * 3, 3, "ended with exit status 3"),
        ([ActionResult(1, "", "iotwin dtr train: the budget cannot be kept\n")], 1, "the budget cannot be kept"),
    ],
)
def test_attempts_end_when_they_are_used_up_or_cannot_succeed(tmp_path, failures, calls, message):
    document, stand_in = retried(failures, tmp_path, attempt_timeout=7.5)
    assert len(stand_in.calls) == calls and message in document["errors"][0]["message"]


def test_without_report_errors_the_first_failure_ends_the_experiment_and_resume_goes_on(tmp_path):
    config = {**UNET_ONLY, "report_errors": False}
    with pytest.raises(IotwinError, match=r"unet, command 1: .*cannot be kept.*--resume"):
        run(tmp_path, config, drawn=[])
    status = tmp_path / "results/results/experiments/status/study"
    assert not json.loads((status / "run.json").read_text())["success"] and not (status / "summary.json").exists()
    assert "cannot be kept" in (tmp_path / "results/report.html").read_text()
    with pytest.raises(IotwinError, match="cannot be kept"):
        run(tmp_path, config, resume=True, drawn=[])
    assert len(list((tmp_path / "results/raw").iterdir())) == 1


def test_a_resumed_run_measures_only_what_is_missing(tmp_path):
    run(tmp_path, UNET_ONLY, drawn=[])
    before = data_of(tmp_path)
    (lost,) = (tmp_path / "results/raw").glob("*/study/cmd-2-dtr-sweep-3-*.csv")
    lost.unlink()
    document, stand_in = run(tmp_path, UNET_ONLY, resume=True, drawn=[])
    assert document["measured"] == 1 and len(stand_in.calls) == 2 and document["failed"] == 1
    assert data_of(tmp_path)[0]["unet"] == before[0]["unet"] and len(data_of(tmp_path)) == 1


def test_a_run_without_resume_adds_to_the_history(tmp_path):
    first, _ = run(tmp_path, UNET_ONLY, drawn=[])
    second, stand_in = run(tmp_path, UNET_ONLY, drawn=[])
    other, _ = run(tmp_path, {**UNET_ONLY, "seed": 8}, resume=True, drawn=[])
    assert len({each["timestamp"] for each in (first, second, other)}) == 3 and len(data_of(tmp_path)) == 3
    assert second["measured"] == 7 and len(stand_in.calls) == 13
    assert all(len(data["timestamp"]) == 15 for data in data_of(tmp_path))


def test_ratios_are_of_the_peak_of_the_baseline(tmp_path):
    _, stand_in = run(tmp_path, {**CONFIG, "models": ["lstm"]}, drawn=[])
    assert {value_of(words, "--budget") for words in stand_in.calls} == {None, "9000000", "5000000"}
    assert all(value_of(words, "--steps") == "4" for words in stand_in.calls)


def test_without_a_baseline_the_peak_is_measured_once(tmp_path):
    config = changed("dtr_settings", "lstm", 0, to=None)
    _, stand_in = run(tmp_path, {**config, "models": ["lstm"]}, drawn=[])
    peaks = [words for words in stand_in.calls if value_of(words, "--steps") == "2"]
    assert len(peaks) == 1 and peaks[0][-1] == "--plain"
    budgets = {value_of(words, "--budget") for words in stand_in.calls} - {None}
    assert budgets == {"9000000", "5000000"}


def test_a_peak_that_cannot_be_measured_is_an_error_of_the_run(tmp_path):
    stand_in = StandIn()
    stand_in.failures = [ActionResult(None, "", "")] * 2
    config = changed("dtr_settings", "lstm", 0, to=None)
    document, _ = run(tmp_path, {**config, "models": ["lstm"]}, stand_in, drawn=[])
    assert [error["message"] for error in document["errors"]] == [
        "lstm: the peak memory without a budget cannot be measured: took more than 30 s"
    ] * 2


def test_an_inactive_experiment_runs_nothing(tmp_path):
    document, stand_in = run(tmp_path, {**CONFIG, "active": False}, drawn=[])
    assert not stand_in.calls and document["stages"] == {"precheck": {"success": True, "message": "Inactive"}}


def test_logs_are_saved_with_a_manifest(tmp_path):
    config = changed("dtr_settings", "lstm", 1, "save_logs", to=True)
    _, stand_in = run(tmp_path, {**config, "models": ["lstm"]}, drawn=[])
    logged = [words for words in stand_in.calls if words[0] == "log"]
    assert len(logged) == 2 and value_of(logged[0], "--warm-up") == "1" and value_of(logged[0], "--seed") == "8"
    models = read_manifest(tmp_path / "results/logs/manifest.json")
    assert [model.title for model in models] == ["lstm (5)", "lstm (5)"]
    assert models[0].log.name.startswith("lstm-5-9000000.0-") and models[0].log.name.endswith("-default.log")


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/mine").write_text("")
    with pytest.raises(UsageError, match="holds other files"):
        run(tmp_path)


@pytest.mark.parametrize("output", ["[]", "{}", '{"step_s": 3, "peak_bytes": 1}', "no json", '{"step_s": [1.0]}'])
def test_a_document_that_is_none_fails_the_run(tmp_path, output):
    stand_in = StandIn()
    stand_in.failures = [ActionResult(0, output, "")]
    document, _ = run(tmp_path, {**UNET_ONLY, "dtr_settings": {"unet": [{"type": "baseline"}]}}, stand_in, drawn=[])
    assert document["failed"] == 1 and "document" in document["errors"][0]["message"]


def test_an_action_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    """With the real caller, and programs in the place of Python: one that sleeps, one that fails."""
    for name, line in (("sleeps", f"echo $$ > {tmp_path}/pid; exec sleep 100"), ("fails", "echo no $5 >&2; exit 3")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "fails"))
    assert trials.call_action(["train", "unet"], 60, dict(os.environ)) == (3, "", "no unet\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "sleeps"))
    begin = time.monotonic()
    assert trials.call_action([], 1.5, dict(os.environ)) == (None, "", "") and time.monotonic() - begin < 60
    assert not members(int((tmp_path / "pid").read_text()))


class _Hook(BaseHTTPRequestHandler):
    bodies: list[dict] = []  # noqa: RUF012 - of one test at a time
    status = 200

    def do_POST(self):
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    _Hook.bodies, _Hook.status = [], 200
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/x"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_summary_is_posted(tmp_path, hook):
    document, _ = run(tmp_path, UNET_ONLY, url=hook, drawn=[])
    (body,) = _Hook.bodies
    (attachment,) = body["attachments"]
    assert attachment["title"] == "Successful benchmarks" and "*unet*" in attachment["fields"][0]["value"]
    assert document["webhook"] == {"success": True, "message": "success"}
    status = tmp_path / "results/results/subsystem/status/exp_results/run.json"
    assert json.loads(status.read_text()) == document["webhook"]


def test_a_failure_is_posted_to_those_who_are_to_know(tmp_path, hook):
    with pytest.raises(IotwinError):
        run(tmp_path, {**UNET_ONLY, "report_errors": False}, url=hook, drawn=[])
    (attachment,) = _Hook.bodies[0]["attachments"]
    value = attachment["fields"][0]["value"]
    assert attachment["title"] == "Failed benchmarks" and "Failed at stage run" in value and "ATTN: <@U1>" in value


def test_a_message_that_is_not_delivered_is_reported_and_loses_nothing(tmp_path, hook, monkeypatch):
    _Hook.status = 500
    document, _ = run(tmp_path, UNET_ONLY, url=hook, drawn=[])
    assert document["webhook"]["success"] is False and "500" in document["webhook"]["message"]
    assert document["stages"]["summary"]["success"]
    assert "refused" in webhook.post("http://127.0.0.1:9/", {})
    monkeypatch.setattr(webhook.urllib.request, "urlopen", raised := Mock(side_effect=http.client.BadStatusLine("SSH-2.0")))
    assert webhook.post(hook, {}) == "it does not answer as a web server does: BadStatusLine" and raised.called


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/y", "hooks", "http://", "http://[::1/", "http://a b/", "http://x:99999/"]
)
def test_addresses_that_are_no_web_addresses_are_refused(url):
    with pytest.raises(UsageError, match="--webhook"):
        webhook.check_url(url)


def test_the_command_lists_runs_and_models(tmp_path):
    listed = json.loads(call("dtr", "run", written(tmp_path), "--dry-run", "--json").stdout)
    assert len(listed["commands"]) == 10 and listed["commands"][2]["ratio"] == 0.5
    assert listed["commands"][7]["attempts"] == 3 and listed["commands"][7]["memory_budget"] == 1_000_000
    shown = call("dtr", "run", written(tmp_path), "--dry-run")
    assert shown.returncode == 0 and shown.stdout.strip().endswith("10 runs")
    models = {row["name"]: row for row in json.loads(call("dtr", "run", "--list", "--json").stdout)["models"]}
    assert models["tv_resnet50"]["is"] == "resnet50" and models["unet"]["sizes"] == {"height": 416, "width": 608}
    assert models.keys() >= THEIRS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the configuration"),
        (["CONFIG"], "with -o DIR"),
        (["missing.json", "--dry-run"], "missing.json cannot be read"),
        (["CONFIG", "-o", "x", "--webhook", "hooks"], "--webhook 'hooks'"),
        (["CONFIG", "-o", "x", "--device", "foo"], "the device 'foo' is unknown"),
    ],
)
def test_what_the_command_refuses(tmp_path, words, message):
    path = str(written(tmp_path))
    done = call("dtr", "run", *(path if word == "CONFIG" else word for word in words), "--quiet")
    assert done.returncode == 2 and message in one_line(done)
