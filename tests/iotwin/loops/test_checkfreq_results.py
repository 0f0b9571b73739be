"""iotwin checkfreq results, and the sweep of experiments that it reads: every option and network its own cell."""

import json

import pytest
import yaml

from iotwin.common.errors import UsageError
from iotwin.loops.experiments.cell import trace_command
from iotwin.loops.experiments.experiment import cells, read_experiment
from iotwin.trace_visuals.curves import read_sheet
from tests.processes import call, one_line


def cell(directory, model, policy, run_s, stalls=(), interval=None, steps=100, repeat=1):
    name = f"checkfreq-{model}-{policy}-{repeat}"
    (directory / "cells" / name).mkdir(parents=True)
    told = {"interval": interval, "count": len(stalls), "stall_s": list(stalls)}
    result = {
        "run_s": run_s,
        "steps": steps,
        "checkpoints": {} if policy == "none" else told,
        "configuration": {"arch": model, "chk_policy": policy},
    }
    record = {"cell": name, "workload": "checkfreq", "result": result}
    (directory / "cells" / name / "cell.json").write_text(json.dumps(record))


def test_results_by_network_and_policy(tmp_path):
    for repeat, run_s in enumerate((10.0, 9.0, 50.0), 1):
        cell(tmp_path, "resnet18", "none", run_s, repeat=repeat)
    cell(tmp_path, "resnet18", "auto", 10.5, [0.01, 0.03], 20)
    cell(tmp_path, "resnet18", "sync", 15.0, [0.2, 0.2], 20)
    cell(tmp_path, "resnet18", "epoch", 11.0, [0.5], steps=100)
    cell(tmp_path, "vgg16", "auto", 3.0, [0.1], 7)
    done = call("checkfreq", "results", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["models"]
    assert first == {
        "model": "resnet18",
        "interval": 20,
        "intervals": {"auto": 20, "sync": 20, "epoch": 100},
        "seconds": {"none": 10.0, "auto": 10.5, "sync": 15.0, "epoch": 11.0},
        "overhead": {"auto": pytest.approx(0.05), "sync": 0.5, "epoch": pytest.approx(0.1)},
        "stall_per_checkpoint_s": {"auto": 0.02, "sync": 0.2, "epoch": 0.5},
        "stall_ratio": 10.0,
    }
    assert second["overhead"] == {"auto": None, "sync": None, "epoch": None} and second["stall_ratio"] is None
    [panel] = read_sheet(tmp_path / "curves.json").panels
    assert [point.x for point in panel.curves[0].points] == [20, 20, 100]
    assert [point.y for point in panel.curves[0].points] == pytest.approx([5, 50, 10])
    shown = call("checkfreq", "results", tmp_path).stdout
    assert "resnet18" in shown and "5.0%" in shown and "10.0" in shown
    assert "holds no finished cells of checkfreq" in one_line(call("checkfreq", "results", tmp_path / "cells"))


def test_an_experiment_sweeps_options(tmp_path):
    for name, count in (("checkfreq-smoke", 8), ("checkfreq", 60)):
        found = cells(read_experiment(type(tmp_path)(name)))
        assert len(found) == count == len({each.name for each in found})
    one = next(each for each in found if each.name == "checkfreq-original-imagenet-r8-b256-w3-vgg16-sync-2")
    assert one.options == {"epochs": 2, "noeval": True, "arch": "vgg16", "chk-policy": "sync"}
    assert one.parameters()["options"] == {"arch": "vgg16", "chk-policy": "sync"}


def test_what_is_swept_reaches_the_job(tmp_path):
    jobs = {
        "workload": "checkfreq",
        "data": ["images"],
        "variant": ["original"],
        "sweep": {"arch": ["vgg16"], "chk-freq": [3, 5]},
    }
    experiment = {
        "name": "small",
        "data": {"images": {"workload": "checkfreq", "folder": "."}},
        "jobs": [jobs],
        "container": False,
    }
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump(experiment))
    read = read_experiment(path)
    found = {each.name: each for each in cells(read)}
    assert sorted(found) == [f"checkfreq-original-images-r1-b1-w1-vgg16-{freq}-1" for freq in (3, 5)]
    command = trace_command(read, found["checkfreq-original-images-r1-b1-w1-vgg16-5-1"], tmp_path, tmp_path)
    at = command.index("--chk-freq")
    assert command[at + 1] == "5" and command[command.index("--arch") + 1] == "vgg16"
    jobs["sweep"] = {"arch": ["../up"]}
    path.write_text(yaml.safe_dump(experiment))
    with pytest.raises(UsageError, match=r"sweep value '\.\./up' cannot be part of a directory's name"):
        read_experiment(path)
