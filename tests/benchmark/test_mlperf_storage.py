"""MLPerf Storage's workloads of v0.5 to v2.0, and v3.0's of DLIO, scaled: generated, run, and checked as MLPerf does."""

import json
from pathlib import Path

import pytest
import yaml

from iotwin.main import main

SCALED = [
    "++workload.dataset.record_length_bytes=4096",
    "++workload.dataset.record_length_bytes_stdev=0",
    "++workload.reader.data_loader=native",
    "++workload.reader.read_threads=1",
    "++workload.train.computation_time=0.002",
    "++workload.train.epochs=2",
    "++workload.workflow.checkpoint=False",
    "++workload.reader.batch_size=4",
]
TRAINING = {
    "v0.5": ["unet3d_v100", "bert_v100"],
    "v2.0": ["unet3d_a100", "unet3d_h100", "resnet50_h100", "cosmoflow_h100"],
    "v3.0": ["unet3d_b200"],
}
SHAPE = {"vocab_size": 1000, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 8, "num_kv_heads": 4}


def run(folder: Path, name: str, *words: str) -> Path:
    hydra = [f"++hydra.run.dir={folder}", "++hydra.output_subdir=dlio_config"]
    assert main(["emulate", "--dlio", f"workload={name}", *hydra, *words, "--quiet"]) == 0
    return folder


@pytest.mark.parametrize("name", [name for names in TRAINING.values() for name in names])
def test_a_training_workload_is_generated_and_run(name: str, tmp_path: Path) -> None:
    data = [f"++workload.dataset.data_folder={tmp_path}/data", "++workload.dataset.num_files_train=24", *SCALED]
    if name.startswith(("resnet50", "bert")):
        data += ["++workload.dataset.num_samples_per_file=6"]
    if name.startswith("bert"):
        data += ["++workload.train.total_training_steps=3"]
    run(tmp_path / "datagen", name, *data, "++workload.workflow.generate_data=True", "++workload.workflow.train=False")
    files = sorted(path.name for path in (tmp_path / "data").rglob("*_of_24.*"))
    assert len([path for path in files if not path.endswith(".idx")]) >= 24
    result = run(tmp_path / "run", name, *data, "--ranks", "2")
    summary = json.loads((result / "summary.json").read_text())
    # What report.py and mlpstorage's rules read.
    for key in (
        "model",
        "num_accelerators",
        "num_hosts",
        "hostname",
        "num_files_train",
        "num_samples_per_file",
        "start",
        "metric",
    ):
        assert key in summary
    assert sum(summary["host_memory_GB"]) > 0 and sum(summary["host_cpu_count"]) > 0
    assert summary["num_accelerators"] == 2 and summary["metric"]["train_throughput_mean_samples_per_second"] > 0
    assert 0 < summary["metric"]["train_au_mean_percentage"] <= 100
    workload = yaml.safe_load((result / "dlio_config" / "config.yaml").read_text())["workload"]
    assert workload["workflow"]["train"] is True and workload["workflow"]["generate_data"] is False
    overrides = yaml.safe_load((result / "dlio_config" / "overrides.yaml").read_text())
    given = dict(text.removeprefix("++workload.").split("=") for text in overrides if text.startswith("++workload."))
    assert given["dataset.num_files_train"] == "24" and "hydra" not in "".join(overrides)


def test_a_checkpoint_workload_is_written_and_read_in_runs_of_their_own(tmp_path: Path) -> None:
    words = [
        f"++workload.checkpoint.checkpoint_folder={tmp_path}/c",
        "++workload.checkpoint.mode=subset",
        "++workload.model.parallelism.data=8",
        "++workload.model.num_layers=2",
        "++workload.checkpoint.time_between_checkpoints=0.001",
        *(f"++workload.model.transformer.{key}={value}" for key, value in SHAPE.items()),
    ]
    counts = ("++workload.checkpoint.num_checkpoints_write", "++workload.checkpoint.num_checkpoints_read")
    saved = run(tmp_path / "save", "llama_8b", *words, f"{counts[0]}=2", f"{counts[1]}=0", "--ranks", "2")
    loaded = run(tmp_path / "load", "llama_8b", *words, f"{counts[0]}=0", f"{counts[1]}=2", "--ranks", "2")
    metrics = [json.loads((folder / "summary.json").read_text())["metric"] for folder in (saved, loaded)]
    assert metrics[0]["save_checkpoint_io_mean_GB_per_second"] > 0 and "load_checkpoint_io_mean_GB_per_second" not in metrics[0]
    assert metrics[1]["load_checkpoint_io_mean_GB_per_second"] > 0 and "save_checkpoint_io_mean_GB_per_second" not in metrics[1]


def datagen(folder: Path, files: int, *words: str) -> Path:
    return run(
        folder / f"datagen{files}",
        "unet3d_h100",
        *SCALED,
        f"++workload.dataset.data_folder={folder}/data",
        f"++workload.dataset.num_files_train={files}",
        "++workload.workflow.generate_data=True",
        "++workload.workflow.train=False",
        *words,
    )


def test_datagen_takes_folders_that_were_made_before_and_leaves_a_log(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):  # as mlpstorage makes them
        (tmp_path / "data" / name).mkdir(parents=True)
    log = (datagen(tmp_path, 8) / "dlio.log").read_text()
    assert "Running DLIO [Generating data] with 1 process(es)" in log and "Generation done" in log
    assert len(list((tmp_path / "data" / "train").iterdir())) == 8


def test_datagen_goes_on_over_another_data_set_and_each_run_reads_its_own(tmp_path: Path) -> None:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "img_0_of_8.npz").write_bytes(b"of DLIO's own")
    datagen(tmp_path, 8)
    datagen(tmp_path, 16)
    for files in (8, 16):
        words = [f"++workload.dataset.data_folder={tmp_path}/data", f"++workload.dataset.num_files_train={files}"]
        result = run(tmp_path / f"run{files}", "unet3d_h100", *SCALED, *words)
        assert json.loads((result / "summary.json").read_text())["num_files_train"] == files
    removed = ["++workload.dataset.keep_files=False", "++workload.workflow.train=False"]
    datagen(tmp_path, 4, *removed)
    assert len(list((tmp_path / "data" / "train").iterdir())) == 24  # those of earlier calls


def test_another_data_set_is_refused_without_the_alias_by_a_remedy_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datagen(tmp_path, 8)
    words = [*SCALED, f"++workload.dataset.data_folder={tmp_path}/data", "++workload.workflow.generate_data=True"]
    assert main(["emulate", "workload=unet3d_h100", *words]) == 1
    assert "choose another directory or replace it (iotwin generate or scale --force)" in capsys.readouterr().err


def test_an_empty_data_folder_is_the_storage_root_as_mlpstorage_names_it_for_direct_reads(tmp_path: Path) -> None:
    words = ["++workload.storage.storage_type=direct_fs", f"++workload.storage.storage_root={tmp_path}/root"]
    datagen(tmp_path, 4, *words, "++workload.dataset.data_folder=")
    assert len(list((tmp_path / "root" / "train").iterdir())) == 4
