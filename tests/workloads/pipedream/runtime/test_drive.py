"""Ranks started by a driver file: what is recorded, and that a killed rank ends all others and is named."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.main import main as iotwin
from iotwin.workloads.launch import Ending, LaunchPlan
from iotwin.workloads.pipedream.__main__ import main
from iotwin.workloads.pipedream.plan.driver_file import Launch, read_driver
from iotwin.workloads.pipedream.plan.plan_file import read_plan
from iotwin.workloads.pipedream.runtime.drive import drive
from tests.conftest import ROOT
from tests.processes import wait_for
from tests.workloads.pipedream.runtime.ranks import die_in_update, run_ranks, write_conf


def driver_file(folder, ranks, **keys):
    write_conf(folder, *[1] * ranks).rename(folder / "conf.json")
    (folder / "logs").mkdir()
    values = {
        "log_directory": str(folder / "logs"), "module": "mlp4", "data_dir": str(folder), "container": "none",
        "machines": [f"localhost:{rank}" for rank in range(ranks)], "model_type": "image_classification",
        "distributed_backend": "gloo", "config_file": "conf.json", "synthetic_data": True, "batch_size": 16, **keys,
    }  # fmt: skip
    path = folder / "driver.yml"
    path.write_text(json.dumps(values))
    return path


@pytest.fixture(params=[4])
def driven(tmp_path, request):
    """A run of ranks that train until somebody ends them: (the driver's process, the folder of the run, pids)."""
    path = driver_file(tmp_path, request.param)
    words = [sys.executable, "-m", "iotwin", "pipedream", "drive", str(path), "--local"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as program:
        try:
            wait_for(lambda: any((tmp_path / "logs").glob("*/launch.json")), "the record of the run")
            [folder] = (tmp_path / "logs").iterdir()
            logs = [folder / f"output.log.{rank}" for rank in range(request.param)]
            wait_for(lambda: all("Epoch: [0][10/" in log.read_text() for log in logs), "the tenth minibatch of each rank")
            yield program, folder, [rank["pid"] for rank in json.loads((folder / "launch.json").read_text())["ranks"]]
        finally:
            program.kill()


def gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_a_killed_rank_ends_all_others_and_is_named(driven):
    program, folder, pids = driven
    rank = 2
    os.kill(pids[rank], signal.SIGKILL)
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 1
    message = f"{folder}: stage {rank}: rank {rank} on localhost was killed by signal 9 (Killed): Epoch: [0]"
    assert output.startswith(message) and output.count("\n") == 1
    assert all(gone(pid) for pid in pids)
    assert json.loads((folder / "launch.json").read_text())["stopped_by"] == rank


@pytest.mark.parametrize("rank", range(4))
def test_each_rank_that_is_killed_ends_all_others_even_without_a_supervisor(tmp_path, rank):
    conf = write_conf(tmp_path, 1, 1, 1, 1)
    words = ("-m", "mlp4", "-s", "-b", 16, "--epochs", 1, "--config_path", conf)
    statuses, outputs = run_ranks(tmp_path, words, 4, prepare={rank: die_in_update(5)}, succeed=False)
    assert statuses.pop(rank) == -signal.SIGKILL and statuses == [1, 1, 1]
    others = [output.splitlines()[-1] for each, output in enumerate(outputs) if each != rank]
    assert all("broke, so that rank has probably ended" in line for line in others)


@pytest.mark.parametrize("driven", [2], indirect=True)
def test_terminate_ends_what_was_recorded_and_nothing_else(driven, capsys):
    program, folder, pids = driven
    record = folder / "launch.json"
    content = json.loads(record.read_text())
    content["ranks"][0]["pid"] = os.getpid()  # as if the pid had been given to another process
    record.write_text(json.dumps(content))
    assert iotwin(["pipedream", "terminate", str(folder / "machinefile"), "--json"]) == 0
    ended = json.loads(capsys.readouterr().out)["ended"]
    assert [each["pid"] for each in ended] == pids[1:]
    program.communicate(timeout=60)
    assert all(gone(pid) for pid in pids)
    assert iotwin(["pipedream", "terminate", str(folder / "machinefile")]) == 0
    assert capsys.readouterr().out == "nothing of this run is running\n"


def test_a_run_s_folder_has_the_original_s_files_and_its_commands_are_those_of_a_dry_run(tmp_path, capsys):
    """The run fails at once, since it has no images."""
    path = driver_file(tmp_path, 2, module="models.vgg16.gpus=2", synthetic_data=False)
    assert iotwin(["pipedream", "drive", str(path), "--local", "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert dry["exit_statuses"] is None
    assert iotwin(["pipedream", "drive", str(path), "--local", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["stopped_by"] == 0 and re.match(r"stage 0: rank 0 on localhost ended with exit status 1: .*", found["reason"])
    folder = Path(found["directory"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", folder.name)
    assert [[word.replace(str(folder), dry["directory"]) for word in command] for command in found["commands"]] == dry["commands"]
    recorded = json.loads((folder / "launch.json").read_text())["ranks"]
    assert [rank["command"] for rank in recorded] == found["commands"] and recorded[0]["exit_status"] == 1
    names = {each.name for each in folder.iterdir()}
    assert names == {
        "driver.yml", "conf.json", "git_info.log", "command_history.log", "machinefile", "output.log.0", "output.log.1",
        "launch.json",
    }  # fmt: skip
    assert (folder / "machinefile").read_text() == "localhost\n"
    assert (folder / "command_history.log").read_text().count("\n") == 2


def test_containers_are_removed_by_their_names(tmp_path, monkeypatch, capsys):
    """Programs named ssh and docker record how they are called; the first "container" fails."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name, text in (
        ("docker", f'echo "$@" >> {calls}; [ $1 = rm ] && echo $3 || exit 3'),
        ("ssh", 'shift 2; exec sh -c "$*"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    path = driver_file(tmp_path, 2, machines=["localhost:0", "far:0"])
    assert iotwin(["pipedream", "drive", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert re.match(r"stage \d: rank \d on (localhost|far) ended with exit status 3", document["reason"])
    called = calls.read_text().splitlines()
    names = {re.search(r"--name (\S+)", " ".join(command))[1] for command in document["commands"]}
    assert {each for each in called if each.startswith("rm")} == {f"rm --force {name}" for name in names} and len(names) == 2
    assert iotwin(["pipedream", "terminate", str(Path(document["directory"]) / "machinefile"), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["containers"]) == names


def test_several_ranks_of_a_host_end_together(tmp_path, capfd):
    """Both ranks fail, since there are no images; one line names the stage and the rank that failed first."""
    conf = write_conf(tmp_path, 1, 1)
    words = ["-m", "vgg16", "--data_dir", str(tmp_path), "--config_path", str(conf), "--master_addr", "127.0.0.1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--rank", "0", "1", "--local-rank", "0", "1"])
    assert ended.value.code == 1
    error = capfd.readouterr().err
    assert "holds no images" in error or "No such file" in error
    assert re.search(r"^pipedream: stage \d: rank \d ended with exit status 1$", error, re.MULTILINE)


def test_a_missing_record_is_an_error(tmp_path, capsys):
    assert iotwin(["pipedream", "terminate", str(tmp_path / "machinefile")]) == 1
    assert "launch.json: No such file or directory; name the machinefile" in capsys.readouterr().err


def test_the_layers_of_the_stages_are_copied_with_the_conf(tmp_path, monkeypatch):
    """Ranks find modules.json in the folder of their conf.json."""
    path = driver_file(tmp_path, 2)
    stages = [{"name": f"Stage{k}", "inputs": [], "outputs": [], "nodes": [f"node{k}"]} for k in range(2)]
    modules = {"model": "M", "arch": "mlp4", "modules": [*stages, {"name": "criterion", "inputs": [], "outputs": ["loss"]}]}
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    monkeypatch.setattr(LaunchPlan, "run", lambda plan: Ending([0, 0]))
    document = drive(read_driver(path), Launch(tmp_path / "logs" / "now", local=True))
    copied = read_plan(Path(document["directory"]) / "conf.json")
    assert [stage.nodes for stage in copied.stages] == [("node0",), ("node1",)]
