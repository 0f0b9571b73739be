"""iotwin run: the grid, its order, and cells that fail, hang or are cut off. DLRM's sleep variant stands for the jobs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from iotwin.common.errors import IotwinError, UsageError
from iotwin.loops.experiments.cell import trace_command
from iotwin.loops.experiments.cell_inputs import difference, inputs_of
from iotwin.loops.experiments.experiment import SHIPPED, cells, read_experiment
from iotwin.loops.experiments.run_cells import _explain, _Runner
from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, nothing_can_trace, run_iotwin
from tests.processes import call, one_line, processes_of, wait_for

needs_a_tracer = pytest.mark.skipif(nothing_can_trace() is not None, reason=str(nothing_can_trace()))


def experiment(**changes):
    jobs = {
        "workload": "dlrm",
        "data": ["clicks"],
        "variant": ["sleep"],
        "batch": [100, 200],
        "sleep": "0.001",
        "options": {"steps": 5, "eval-every": 0},
    }
    jobs |= changes.pop("jobs", {})
    return {
        "name": "small",
        "container": False,
        "time_limit": "30min",
        "data": {"clicks": {"workload": "dlrm", "generate": ["--samples", "5000"]}},
        "jobs": [jobs],
        **changes,
    }


def write(path, **changes):
    path.write_text(yaml.safe_dump(experiment(**changes)))
    return path


def run(path, output):
    done = run_iotwin("run", path, "-o", output, "--json")
    return done.returncode, json.loads(done.stdout)


@needs_a_tracer
def test_a_grid_runs_and_runs_no_cell_again(tmp_path):
    source, output = write(tmp_path / "e.yaml", plot="steps"), tmp_path / "out"
    status, summary = run(source, output)
    assert status == 0 and summary["failed"] == [] and len(summary["finished"]) == 2
    assert (output / "plots" / "steps" / "dlrm_breakdown.png").stat().st_size > 1000
    assert summary == json.loads((output / "summary.json").read_text())
    for record in summary["finished"]:
        cell = output / "cells" / record["cell"]
        assert record["result"]["steps"] == 5 and record["machine"]["versions"]["python"] == sys.version.split()[0]
        reads = [row for row in Trace(cell / "trace").files()["path"] if row.endswith("terabyte_processed_train.bin")]
        assert reads == [str(output / "data" / "clicks" / "terabyte_processed_train.bin")]
    before = {path: path.stat().st_mtime_ns for path in [*output.glob("cells/*/*"), *output.glob("plots/*/*")]}
    status, again = run(source, output)
    assert status == 0 and again["finished"] == summary["finished"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(before) == len([*output.glob("cells/*/*"), *output.glob("plots/*/*")])


@needs_a_tracer
def test_failed_and_hung_cells_are_named_and_the_rest_goes_on(tmp_path, monkeypatch):
    whole = _Runner._execute

    def limited(self, command, directory):
        self._experiment = structs.replace(self._experiment, time_limit="4s" if "-b100-" in directory.name else "30min")
        whole(self, command, directory)

    # However slow the machine, only the cell that hangs meets its limit.
    monkeypatch.setattr(_Runner, "_execute", limited)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    jobs = [
        experiment()["jobs"][0] | {"batch": [6000]},  # more than there is
        experiment()["jobs"][0] | {"batch": [100], "sleep": "600"},
        experiment()["jobs"][0] | {"batch": [200]},
        experiment()["jobs"][0] | {"batch": [200], "data": ["elsewhere"]},
    ]
    missing = {"elsewhere": {"workload": "dlrm", "folder": str(tmp_path / "none")}}
    source = write(tmp_path / "e.yaml", jobs={})
    source.write_text(yaml.safe_dump(yaml.safe_load(source.read_text()) | {"jobs": jobs, "data": experiment()["data"] | missing}))
    done = call("run", source, "-o", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [record["batch"] for record in summary["finished"]] == [200]
    reasons = {failure["cell"]: failure["reason"] for failure in summary["failed"]}
    assert "too few for one batch of 6000" in reasons["dlrm-sleep-clicks-r1-b6000-w1-1"]
    assert "longer than the time limit of 4s" in reasons["dlrm-sleep-clicks-r1-b100-w1-1"]
    assert "is missing" in reasons["dlrm-sleep-elsewhere-r1-b200-w1-1"]
    for cell, reason in reasons.items():
        assert f"FAILED {cell}: {reason}" in done.stdout
    wait_for(lambda: not processes_of(tmp_path), "the end of all that ran")


KILLED_WHEN = {
    # what is there then, how often, and how many cells have finished by then
    "the data are being generated": ("data/.clicks.partial", 1, 0),
    "the data are there": ("data/clicks", 1, 0),
    "the first cell begins": ("cells/*", 1, 0),
    "the second cell's job runs": ("cells/*/trace/logs/stdout", 2, 1),
    "the second cell has ended": ("cells/*/cell.json", 2, 2),
}


@needs_a_tracer
@pytest.mark.parametrize("point", KILLED_WHEN)
def test_a_run_killed_at_any_point_goes_on_where_it_was(tmp_path, point):
    source, output = write(tmp_path / "e.yaml", jobs={"batch": [100, 200, 300], "sleep": "0.1"}), tmp_path / "out"
    command = [sys.executable, "-m", "iotwin", "run", str(source), "-o", str(output), "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment) as process:
        pattern, number, least_finished = KILLED_WHEN[point]
        while len(list(output.glob(pattern))) < number:
            time.sleep(0.001)
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    finished = {path: path.read_bytes() for path in output.glob("cells/*/cell.json")}
    assert least_finished <= len(finished) < 3
    status, summary = run(source, output)
    assert status == 0 and len(summary["finished"]) == 3
    assert all(path.read_bytes() == content for path, content in finished.items())
    for record in summary["finished"]:
        trace = Trace(output / "cells" / record["cell"] / "trace")
        assert trace.manifest.status == "complete" and str(record["batch"]) in trace.manifest.target.command
    wait_for(lambda: not processes_of(tmp_path), "the end of all that ran")


def test_more_gpus_than_there_are(tmp_path):
    source = write(tmp_path / "e.yaml", gpus=True, jobs={"ranks": [1000], "batch": [1]})
    status, summary = run(source, tmp_path / "out")
    assert status == 1
    assert "it needs 1000 GPUs" in summary["failed"][0]["reason"]


def test_data_that_cannot_be_made(tmp_path):
    data = {"clicks": {"workload": "dlrm", "generate": ["--samples", "many"]}}
    status, summary = run(write(tmp_path / "e.yaml", data=data), tmp_path / "out")
    assert status == 1 and "could not be generated" in summary["failed"][0]["reason"]
    assert [path.name for path in (tmp_path / "out" / "data").iterdir()] == []


def test_the_order_is_random_and_a_seed_s_own(tmp_path):
    def order(seed):
        source = write(tmp_path / "e.yaml", seed=seed, repeats=2, jobs={"batch": list(range(1, 21))})
        return [cell.name for cell in cells(read_experiment(source))]

    assert order(1) == order(1) != order(2) and sorted(order(1)) == sorted(order(2))
    assert all(name.endswith("-1") for name in order(1)[:20])  # repeats follow one another


def test_cells_with_a_swept_option_and_without_it_take_turns(tmp_path):
    jobs = {"batch": [1, 2, 3], "options": {"threads": 1}, "sweep": {"checkpoint-steps": [None, 5, 50]}}
    found = cells(read_experiment(write(tmp_path / "e.yaml", repeats=4, jobs=jobs)))
    together = [found[first : first + 3] for first in range(0, len(found), 3)]
    assert len(together) == 12
    for alike in together:
        assert len({(cell.batch, cell.variant, cell.data, cell.repeat) for cell in alike}) == 1
        assert {cell.swept for cell in alike} == {(None,), (5,), (50,)}
    assert len({alike[0].swept for alike in together}) > 1  # not always the same first
    baseline = next(cell for cell in found if cell.swept == (None,))
    assert "-without-" in baseline.name and baseline.options == {"threads": 1}
    assert baseline.parameters()["options"] == {"checkpoint-steps": None}
    assert len({cell.name for cell in found}) == len(found)


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_shipped_experiments_read(name):
    assert len(cells(read_experiment(Path(name)))) == {
        "timeline": 6, "timeline-smoke": 6, "instrumentation": 270, "instrumentation-smoke": 20,
        "checkfreq": 60, "checkfreq-smoke": 8}[name]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": {"variant": ["slep"]}}, "no variant 'slep' (did you mean 'sleep'?)"),
        ({"jobs": {"data": ["click"]}}, "no data set 'click' (did you mean 'clicks'?)"),
        ({"jobs": {"batch": [0]}}, ">= 1"),
        ({"jobs": {"batches": [1]}}, "batches"),
        ({"jobs": {"sleep": None}}, "needs sleep"),
        ({"jobs": {"variant": ["emulated"]}}, "needs emulate"),
        ({"jobs": {"batch": [1, 1]}}, "is there twice"),
        ({"data": {"clicks": {"workload": "dlrm"}}}, "needs either folder or generate"),
        ({"data": {"clicks": {"workload": "bert", "folder": "x"}}}, "is for bert, not dlrm"),
        ({"time_limit": "soon"}, "soon"),
        ({"name": "../up"}, "matching regex"),
        ({"name": ".."}, "matching regex"),
        ({"name": "."}, "matching regex"),
        ({"name": "x\n"}, "matching regex"),
        ({"data": {"..": {"workload": "dlrm", "folder": "x"}}}, "matching regex"),
        ({"time_limit": "1e999s"}, "larger than any"),
        ({"repeats": 10**9}, "more than 10000 cells"),
        ({"jobs": {"sweep": {name: list(range(40)) for name in ("k", "l", "m", "n")}}}, "more than 10000 cells"),
        ({"data": {"clicks": {"workload": "dlrm", "generate": ["-o", "/elsewhere"]}}}, "generate cannot take '-o'"),
        ({"data": {"clicks": {"workload": "dlrm", "generate": ["-o/elsewhere"]}}}, "generate cannot take '-o/elsewhere'"),
        (
            {"data": {"clicks": {"workload": "dlrm", "generate": ["--outp=/elsewhere"]}}},
            "generate cannot take '--outp=/elsewhere'",
        ),
        ({"data": {"clicks": {"workload": "dlrm", "generate": ["--dry-run"]}}}, "generate cannot take '--dry-run'"),
        ({"jobs": {"options": {"output": "/elsewhere"}}}, "'output' is the cell's own"),
        ({"jobs": {"sweep": {"outp=/elsewhere": [1]}}}, "is the cell's own"),
    ],
)
def test_experiments_that_make_no_sense(tmp_path, changes, message):
    with pytest.raises(UsageError) as error:
        read_experiment(write(tmp_path / "e.yaml", **changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_experiments_that_are_not_there(tmp_path):
    done = call("run", "timelin-smoke")
    assert done.returncode == 2 and "did you mean 'timeline-smoke'?" in done.stderr
    (tmp_path / "e.yaml").write_text("a: [")
    done = call("run", tmp_path / "e.yaml")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is not YAML" in done.stderr


@pytest.mark.parametrize("name", ["timeline", "instrumentation"])
@pytest.mark.parametrize("smoke", [False, True])
def test_the_artifact_s_scripts_run_the_shipped_experiments(tmp_path, name, smoke):
    (tmp_path / "iotwin").write_text(f'#!/bin/sh\nexec {sys.executable} -m iotwin "$@"\n')
    (tmp_path / "iotwin").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    script = ROOT / "tracing_tools" / f"run_{name}_experiments.sh"
    command = [script, *(["--smoke"] if smoke else []), "--dry-run", "--json"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["experiment"] == name + ("-smoke" if smoke else "")


@pytest.mark.parametrize(
    ("status", "own", "job", "reason"),
    [
        (137, "", "", "it was killed, as the kernel does when memory runs out"),
        (1, "iotwin trace: no Docker Engine answers at /x; start it", "ignored", "no Docker Engine answers at /x; start it"),
        (1, "", "warning\nunet3d: out of memory", "unet3d: out of memory"),
        (1, "", "bert: a shard is damaged\nlaunch: rank 1 ended", "bert: a shard is damaged"),
        (137, "", "launch: rank 1 ended", "it was killed, as the kernel does when memory runs out: launch: rank 1 ended"),
        (3, "", "", "it ended with exit status 3 and printed nothing"),
    ],
)
def test_why_a_cell_failed(tmp_path, status, own, job, reason):
    (tmp_path / "iotwin.log").write_text(own)
    (tmp_path / "trace" / "logs").mkdir(parents=True)
    (tmp_path / "trace" / "logs" / "stderr").write_text(job)
    assert _explain(status, tmp_path) == reason


def test_what_runs_in_a_container_and_what_it_sees(tmp_path):
    """Emulated cells in the emulator's image, without GPUs; a twin and a sleep model are put where the container finds them."""
    (tmp_path / "twin.yaml").write_text("a: twin")
    (tmp_path / "sleep.json").write_text("0.5")
    jobs = {
        "variant": ["emulated", "sleep"],
        "batch": [7],
        "emulate": [str(tmp_path / "twin.yaml"), "++workload.train.epochs=2"],
        "sleep": str(tmp_path / "sleep.json"),
    }
    grid = read_experiment(write(tmp_path / "e.yaml", container=True, jobs=jobs))
    by_variant = {cell.variant: cell for cell in cells(grid)}
    for variant, image, job in [
        ("emulated", "dlio:latest", ["emulate", "/output/twin.yaml", "--instrument"]),
        ("sleep", "dlrm:sleep", ["iotwin.workloads.dlrm"]),
    ]:
        directory = tmp_path / variant
        directory.mkdir()
        command = trace_command(grid, by_variant[variant], tmp_path / "data", directory)
        own = command[command.index("--") + 1 :]
        assert command[command.index("--image") + 1] == image and own[: len(job)] == job
        assert not [word for word in own if str(tmp_path) in word]
    assert (tmp_path / "emulated" / "output" / "twin.yaml").read_text() == "a: twin"
    assert own[own.index("--sleep") + 1] == "/output/computation_time.json"
    assert (tmp_path / "sleep" / "output" / "computation_time.json").read_text() == "0.5"
    grid.images["emulated"] = "mine"
    (tmp_path / "other").mkdir()
    assert "mine" in trace_command(grid, by_variant["emulated"], tmp_path / "data", tmp_path / "other")
    (tmp_path / "twin.yaml").unlink()
    (tmp_path / "third").mkdir()
    with pytest.raises(IotwinError, match="No such file"):
        trace_command(grid, by_variant["emulated"], tmp_path / "data", tmp_path / "third")


def test_no_docker(tmp_path, monkeypatch):
    """One line says so, and how to do without, before any data set is made; the exit status is 1."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    done = call("run", write(tmp_path / "e.yaml", container=True), "-o", tmp_path / "out")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert "no Docker Engine answers" in one_line(done) and "--no-container" in one_line(done)


def finish(output, experiment, **changes):
    """Leave in `output` what a run of the experiment leaves of its cells, but for their traces."""
    for cell in cells(experiment):
        directory = output / "cells" / cell.name
        directory.mkdir(parents=True)
        record = {"cell": cell.name, **cell.parameters(), "asked": inputs_of(experiment, cell), **changes}
        (directory / "cell.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"jobs": {"options": {"steps": 7}}}, "options.eval-every was 0 and is null"),
        ({"jobs": {"options": {"steps": 7, "eval-every": 0}}}, "options.steps was 5 and is 7"),
        ({"data": {"clicks": {"workload": "dlrm", "generate": ["--samples", "9"]}}}, 'data.generate was ["--samples", "5000"]'),
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"jobs": {"sleep": "0.002"}}, 'sleep was "0.001" and is "0.002"'),
    ],
)
def test_a_result_of_other_options_is_never_taken_for_the_cells_own(tmp_path, changes, differs):
    finish(tmp_path / "out", read_experiment(write(tmp_path / "e.yaml")))
    assert call("run", tmp_path / "e.yaml", "-o", tmp_path / "out").returncode == 0
    done = call("run", write(tmp_path / "e.yaml", **changes), "-o", tmp_path / "out")
    assert done.returncode == 2 and differs in one_line(done) and "dlrm-sleep-clicks-r1-b" in one_line(done)
    assert "choose another -o" in one_line(done)


def test_a_result_that_does_not_say_what_it_was_made_with_is_refused(tmp_path):
    finish(tmp_path / "out", read_experiment(write(tmp_path / "e.yaml")), asked=None)
    done = call("run", tmp_path / "e.yaml", "-o", tmp_path / "out")
    assert done.returncode == 2 and "holds no record of the options" in one_line(done)


def test_a_twin_that_has_changed_is_another_experiment(tmp_path):
    (tmp_path / "twin.yaml").write_text("a: 1")
    grid = read_experiment(
        write(tmp_path / "e.yaml", jobs={"variant": ["emulated"], "emulate": [str(tmp_path / "twin.yaml"), "++workload.x=1"]})
    )
    (cell, *_) = cells(grid)
    before = inputs_of(grid, cell)
    assert difference(json.loads(json.dumps(before)), inputs_of(grid, cell)) is None
    (tmp_path / "twin.yaml").write_text("a: 2")
    assert str(difference(before, inputs_of(grid, cell))).startswith('emulate was ["sha256:')


def test_data_generated_with_other_options_is_never_taken_for_the_cells_own(tmp_path):
    output = tmp_path / "out"
    (output / "data" / "clicks").mkdir(parents=True)
    done = call("run", write(tmp_path / "e.yaml"), "-o", output)
    assert done.returncode == 2 and "data/clicks holds no record of the options" in one_line(done)
    (output / "data.json").write_text(
        json.dumps({"clicks": {"workload": "dlrm", "folder": None, "generate": ["--samples", "9"]}})
    )
    done = call("run", tmp_path / "e.yaml", "-o", output)
    assert done.returncode == 2 and 'generate was ["--samples", "9"]' in one_line(done)


def test_no_link_in_the_results_is_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    source = write(tmp_path / "e.yaml")
    name = cells(read_experiment(source))[0].name
    for link, target in (
        ("lock", victim), ("cells", elsewhere), ("data", elsewhere), (f"cells/{name}", elsewhere), ("plots/steps", elsewhere),
        ("data/.clicks.partial", elsewhere),
    ):  # fmt: skip
        output = tmp_path / link.replace("/", "-")
        (output / link).parent.mkdir(parents=True)
        (output / link).symlink_to(target)
        done = call("run", source, "-o", output)
        assert done.returncode == 1 and "link" in one_line(done)
    assert victim.read_text() == "mine" and not list(elsewhere.iterdir())
