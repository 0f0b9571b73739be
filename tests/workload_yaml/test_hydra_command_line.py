"""DLIO's command line: Hydra's choice of a workload, its overrides, and the notes that a run leaves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from iotwin.common.errors import UsageError
from iotwin.main import main
from iotwin.workload_yaml import (
    CheckpointFile,
    ConfigFolders,
    Normal,
    Twin,
    TwinCheckpoint,
    Uniform,
    compose_job,
    job_files,
    load,
    parse_foreign,
)
from iotwin.workload_yaml.overrides import ComposedValues, apply, parse_override
from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workload").mkdir()
    (tmp_path / "config.yaml").write_text(
        "defaults:\n- _self_\n- workload: small\n- override hydra/job_logging: disabled\n"
        "hydra: {run: {dir: './results/${workload.model}'}, output_subdir: notes}\nworkload: {train: {seed: 5, epochs: 9}}\n"
    )
    (tmp_path / "workload" / "small.yaml").write_text(
        "model: little\ntrain: {epochs: 2, computation_time: 1.0}\nreader: {batch_size: 3}\nlogging: {verbosity: INFO}\n"
    )
    (tmp_path / "workload" / "unet3d_h100.yaml").write_text("model: {name: mine}\n")
    (tmp_path / "open.yaml").write_text("defaults: [_self_, workload: ]\n")
    return tmp_path


def test_the_defaults_of_config_yaml_choose_the_workload(folder: Path) -> None:
    job = compose_job([], ConfigFolders(folder))
    config = job.workload.config
    assert (job.choice, config.model.name, config.output.folder, job.subfolder) == (
        "small",
        "little",
        "./results/little",
        "notes",
    )
    assert (config.train.epochs, config.train.seed) == (2, 5)  # _self_ comes first, so the workload counts
    assert compose_job([], ConfigFolders()).workload.config.dataset.num_files_train == 64  # DLIO's own default
    assert compose_job([], ConfigFolders()).workload.config.output.folder.startswith("./hydra_log/default/20")


def test_a_workload_named_counts_wherever_it_is(folder: Path) -> None:
    assert compose_job(["workload=unet3d_h100"], ConfigFolders(folder)).workload.config.model.name == "mine"
    shipped = compose_job(["workload=unet3d_a100"], ConfigFolders(None, folder)).workload.config
    assert shipped.train.computation_time == 0.636
    assert compose_job(["workload=small"], ConfigFolders(folder, None, "open")).choice == "small"


@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ([], {"name": "open"}, "open.yaml: names no workload in its defaults"),
        ([], {"name": "confg"}, "--config-name confg: no such YAML in the folders given (did you mean 'config'?)"),
        (["workload=smal"], {}, "workload=smal: not among those shipped (did you mean 'small'?)"),
        (["workload.reader.batchsize=4"], {}, "'workload.reader.batchsize=4': reader.batchsize is not in the workload"),
        (["+workload.reader.batch_size=4"], {}, "'+workload.reader.batch_size=4': reader.batch_size is there already"),
        (["~workload.reader.read_threads"], {}, "'~workload.reader.read_threads': reader.read_threads cannot be taken away"),
        (["~workload.reader.batch_size=4"], {}, "reader.batch_size is 3, so it is not taken away"),
        (["++workload.reader.batch_size=many"], {}, "'++workload.reader.batch_size=many': reader.batch_size: expected int"),
        (["batch_size"], {}, "'batch_size' is not an override"),
        (["++workload.dataset.data_folder=str(5)"], {}, "functions of Hydra's are not known"),
        (["++workload.reader.batch_size="], {}, "'++workload.reader.batch_size=': reader.batch_size: expected int"),
        (["++hydra.output_subdir=../x"], {}, "leads out of the output folder"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, words: list[str], place: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as error:
        compose_job(words, ConfigFolders(folder, **place))  # type: ignore[arg-type]
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_unknown_keys_are_passed_over_and_told(folder: Path) -> None:
    job = compose_job(["++workload.workflow.evaluate=False", "++workload.nobody={knows:1}"], ConfigFolders(folder))
    assert job.workload.passed_over == ["logging", "workflow.evaluate", "nobody"]
    with pytest.raises(UsageError, match="logging: unknown key"):
        load(folder / "workload" / "small.yaml")


def test_a_deviation_beside_a_time_is_known_as_dlio_knows_it() -> None:
    job = compose_job(["++workload.train.computation_time_stdev=0.1"], ConfigFolders())
    assert job.workload.config.train.computation_time == Normal(mean=1.0, stdev=0.1) and not job.workload.passed_over


def test_pytorchs_own_class_is_no_plug_in_as_with_dlio() -> None:
    words = ["++workload.reader.data_loader=pytorch", "++workload.reader.data_loader_classname=torch.utils.data.DataLoader"]
    reader = compose_job(words, ConfigFolders()).workload.config.reader
    assert (reader.data_loader, reader.data_loader_classname) == ("pytorch", None)


@pytest.mark.parametrize("shape", ["workflow: {train: true}", "framework: pytorch"])
def test_unknown_keys_of_a_yaml_of_dlios_are_passed_over_without_the_alias(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dlio.yaml"
    path.write_text(
        f"model: {{name: a}}\n{shape}\nlogging: {{verbosity: INFO}}\nreader: {{storage_library: s3dlio, batch_size: 3}}\n"
    )
    assert main(["emulate", str(path), "--show"]) == 0
    assert "ignored, as the emulator has no such keys: logging, reader.storage_library" in capsys.readouterr().err
    assert main(["emulate", str(path), "++workload.reader.batchsize=4", "--show"]) == 2
    path.write_text(f"{path.read_text()}twin: {{ranks: 2}}\n")
    assert main(["emulate", str(path), "--show"]) == 2
    assert "logging: unknown key" in capsys.readouterr().err


def test_keys_that_earlier_versions_fitted_keep_their_effect(tmp_path: Path) -> None:
    (path := tmp_path / "twin.yaml").write_text(
        "twin: {checkpoint: {keep_epoch_ends: true, after_steps: [3], files: [{name: a, write_sizes: [[1, 1]], epochs: [2]}]}}\n"
    )
    files = [CheckpointFile("a", [(1, 1)], after=[2])]
    assert parse_foreign(path.read_bytes(), "twin.yaml").twin.checkpoint == load(path).twin.checkpoint
    assert load(path).twin.checkpoint == TwinCheckpoint(files=files, keep_every="epoch", after=[3])


@pytest.mark.parametrize(("key", "value"), [("read_type", "kept_open"), ("sample_shuffle", "sorted")])
def test_values_for_recordings_are_refused_without_one(tmp_path: Path, key: str, value: str) -> None:
    (path := tmp_path / "twin.yaml").write_text(f"reader: {{{key}: {value}}}\ntwin: {{recorded: {{file: r}}}}\n")
    assert getattr(load(path).reader, key) == value
    with pytest.raises(UsageError, match=f"reader.{key}: {value} is for recorded twins"):
        load(path, ["~twin.recorded"])


def test_the_read_that_finds_the_end_of_a_file_is_the_last(tmp_path: Path) -> None:
    (path := tmp_path / "twin.yaml").write_text("twin: {reader: {read_sizes: [4096, 512, 0]}}\n")
    assert load(path).twin.reader.read_sizes == [4096, 512, 0]
    with pytest.raises(UsageError, match=r"twin.reader.read_sizes: a 0 stands for the read that finds the end"):
        load(path, ["++workload.twin.reader.read_sizes=[0, 4096]"])


def test_keys_of_earlier_twins_are_ignored_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "twin.yaml"
    path.write_text(
        "twin: {ranks: 2, train_reads: ['0:0+5'], reader: {streamed: true}, evaluation: {lead_time: {values: [1]}},\n"
        "  host: node, checkpoint: {files: [{name: a, write_sizes: [[1, 1]], made_first: true}], first_lead_time: 1}}\n"
    )
    assert main(["emulate", str(path), "--show"]) == 0
    note = (
        "ignored, as the emulator has no such keys: twin.train_reads, twin.reader.streamed, twin.evaluation.lead_time, "
        "twin.host, twin.checkpoint.files[0].made_first, twin.checkpoint.first_lead_time (now twin.checkpoint.lead_time)\n"
    )
    assert note in capsys.readouterr().err
    assert (
        parse_foreign(path.read_bytes(), "twin.yaml").twin
        == load(path).twin
        == Twin(ranks=2, checkpoint=TwinCheckpoint(files=[CheckpointFile("a", [(1, 1)])]))
    )
    assert (
        capsys.readouterr().err.count(note) == 1
    )  # once for each name of the YAML: twin.yaml, and the path that is noted already
    path.write_text("twin: {startup_files: [a]}\n")
    assert parse_foreign(path.read_bytes(), "twin.yaml").twin == Twin()
    assert "no such keys: twin.startup_files" in capsys.readouterr().err
    assert main(["emulate", str(path), "++workload.twin.reader.streamed=true", "--show"]) == 2
    assert "twin.reader.streamed: unknown key" in capsys.readouterr().err


def raw(*overrides: str) -> dict[str, object]:
    settings = ComposedValues()
    settings.put("train.computation_time", 1.0, "x.yaml")
    settings.put("train.groups", [1, 2], "x.yaml")
    for text in overrides:
        apply(settings, parse_override(text), strict=True)
    return settings.raw


# What Hydra 1.3.2 makes of {train: {computation_time: 1.0, groups: [1, 2]}} and these.
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["++train.computation_time.type=uniform"], {"computation_time": {"type": "uniform"}, "groups": [1, 2]}),
        (["++train={epochs:3}"], {"computation_time": 1.0, "groups": [1, 2], "epochs": 3}),
        (["++train.groups=[3]"], {"computation_time": 1.0, "groups": [3]}),
        (["~train.groups"], {"computation_time": 1.0}),
        (["~train.computation_time=1.0"], {"groups": [1, 2]}),
        (
            ["++train.d=1e-3", "++train.e=off", "++train.f=.5"],
            {"computation_time": 1.0, "groups": [1, 2], "d": 0.001, "e": "off", "f": 0.5},
        ),
        (
            ["++train.computation_time={type:uniform,min:1,max:2}"],
            {"computation_time": {"type": "uniform", "min": 1, "max": 2}, "groups": [1, 2]},
        ),
        (["train.computation_time=null"], {"computation_time": None, "groups": [1, 2]}),
        ([r"++train.groups=a\,b\=c", r"++train.computation_time='it\'s, 5'"], {"computation_time": "it's, 5", "groups": "a,b=c"}),
        (["++train.groups=", "train.computation_time='5'"], {"computation_time": "5", "groups": ""}),
    ],
)
def test_overrides_mean_what_they_mean_to_hydra(overrides: list[str], expected: dict[str, object]) -> None:
    assert raw(*overrides) == {"train": expected}


def test_a_distribution_may_be_put_together_over_a_number(folder: Path) -> None:
    time = "++workload.train.computation_time"
    uniform = compose_job([f"{time}.type=uniform", f"{time}.min=1.0", f"{time}.max=2.0"], ConfigFolders(folder))
    assert uniform.workload.config.train.computation_time == Uniform(1, 2)
    assert compose_job([f"{time}.mean=1.0"], ConfigFolders(folder)).workload.config.train.computation_time == Normal(1)
    none = compose_job(["++workload.reader.multiprocessing_context=None"], ConfigFolders(folder))
    assert none.workload.config.reader.multiprocessing_context == "fork"


def test_a_run_leaves_the_notes_that_checkers_read(folder: Path) -> None:
    words = ["workload=small", "++workload.train.epochs=4", "++hydra.output_subdir=dlio_config"]
    files = job_files(compose_job(words, ConfigFolders(folder)))
    assert sorted(files) == [f"dlio_config/{name}.yaml" for name in ("config", "hydra", "overrides")]
    config, hydra, overrides = (yaml.safe_load(files[name]) for name in sorted(files))
    assert overrides == ["workload=small", "++workload.train.epochs=4"]
    assert (config["workload"]["train"]["epochs"], config["workload"]["model"]["name"]) == (4, "little")
    assert hydra["hydra"]["runtime"]["choices"] == {"workload": "small"}
    assert hydra["hydra"]["overrides"]["hydra"] == ["++hydra.output_subdir=dlio_config"]
    assert job_files(compose_job(["++hydra.output_subdir=null"], ConfigFolders(folder))) == {}


def test_the_notes_are_in_the_output_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DFTRACER_ENABLE", "1")
    words = [
        "++workload.dataset.format=synthetic",
        "++workload.dataset.num_files_train=8",
        "++workload.reader.data_loader=native",
        "++workload.train.computation_time=0.001",
        "++workload.unread=1",
    ]
    assert main(["emulate", "--dlio", f"--config-dir={folder}", *words]) == 0
    assert "ignored, as the emulator has no such keys: logging, unread" in capsys.readouterr().err
    output = folder / "results" / "little"
    assert {"summary.json", "notes", "trace-0-of-1.pfw"} <= {path.name for path in output.iterdir()}
    assert yaml.safe_load((output / "notes" / "overrides.yaml").read_text()) == words


def test_hydras_short_options_and_the_query_are_known(folder: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    programs = ROOT / "benchmark" / "bin"

    def told(*words: str) -> str:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    composed = yaml.safe_load(told(str(programs / "dlio_benchmark"), "-cp", str(folder), "-cn", "config", "-c", "job"))
    assert composed["workload"]["model"]["name"] == "little"
    asked = told(str(programs / "dlio_benchmark_query"), "-cd", str(folder), "++workload.workflow.query=reader.batch_size")
    assert asked == "3\n"


def test_options_of_dlio_need_dlio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "workload=default", "--cfg", "job"]) == 2
    assert "need --dlio" in capsys.readouterr().err
