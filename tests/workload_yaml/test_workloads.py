"""Every workload that is shipped, and every one that DLIO and MLPerf Storage ship where these are at hand, runs scaled down."""

import json
import os
from pathlib import Path

import pytest

from iotwin.common.errors import UsageError
from iotwin.common.progress import set_quiet
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import SHIPPED, Config, StepTimeRegression, compose, load, select
from iotwin.workload_yaml.yaml_file import read
from tests.conftest import ROOT

REFERENCE = Path(os.environ.get("IOTWIN_DLIO_WORKLOADS", ROOT.parent / "shared" / "reference" / "dlio_workloads"))
_NO_REFERENCE = f"no workloads of DLIO in {REFERENCE}; set IOTWIN_DLIO_WORKLOADS to their folder"

# Small enough to run in a moment; everything else stays as the file has it.
SMALL = {
    "dataset.num_files_train": 4, "dataset.num_samples_per_file": 2, "dataset.eval_num_samples_per_file": 2,
    "dataset.record_length_bytes": 400,
    "dataset.record_length_bytes_stdev": 0, "dataset.record_length_bytes_resize": 100,
    "reader.batch_size": 2, "reader.read_threads": 1, "reader.batch_size_eval": 1,
    "train.epochs": 2, "train.computation_time": 0, "train.total_training_steps": 2,
    "evaluation.eval_time": 0, "evaluation.eval_after_epoch": 1, "evaluation.epochs_between_evals": 1,
    "evaluation.total_eval_steps": 1, "evaluation.steps_between_evals": 2,
    "model.model_size_bytes": 5000, "model.num_layers": 2, "model.layer_parameters": [40, 8], "model.optimization_groups": [80],
    "model.parallelism": {"tensor": 1, "pipeline": 1},
    "model.transformer": {"vocab_size": 64, "hidden_size": 16, "ffn_hidden_size": 32, "num_attention_heads": 4,
                          "num_kv_heads": 2},
    "checkpoint.checkpoint_after_epoch": 1, "checkpoint.epochs_between_checkpoints": 1, "checkpoint.time_between_checkpoints": 0,
    "checkpoint.num_checkpoints_write": 2, "checkpoint.num_checkpoints_read": 1, "checkpoint.steps_between_checkpoints": 2,
    "checkpoint.ckpt_write_sz_q1": 16, "checkpoint.ckpt_write_sz_mean": 100, "checkpoint.ckpt_write_sz_std": 10,
    "storage.storage_type": "local_fs", "storage.storage_root": "./", "workflow.generate_data": True,
}  # fmt: skip


def reference_files() -> list[Path]:
    by_content = {path.read_bytes(): path for path in sorted(REFERENCE.rglob("*.yaml")) if is_workload(path)}
    return list(by_content.values())


def is_workload(path: Path) -> bool:
    """Whether it has sections of a workload; beside those lie Hydra's and MLPerf Storage's own configurations."""
    return bool({"workflow", "model"} & read(path)[0].keys())


def small(path: Path, folder: Path) -> list[str]:
    """Overrides that scale the workload down: of SMALL those whose keys the file gives a value; data and results in `folder`."""
    origins = compose(path, []).origins
    given = {key for key in SMALL if key in origins or any(name.startswith(f"{key}.") for name in origins)}
    always = {
        key for key in SMALL if key.startswith(("train.", "workflow.", "dataset.num_files_train", "dataset.record_length_bytes"))
    }
    if "dataset.num_files_eval" in origins:
        given |= {"dataset.num_files_eval"}
    values = {**SMALL, "dataset.num_files_eval": 2}
    overrides = [f"++workload.{key}={json.dumps(values[key])}" for key in sorted(given | always)]
    return [
        *overrides,
        f"++workload.dataset.data_folder={folder}/data",
        f"++workload.output.folder={folder}/output",
        f"++workload.checkpoint.checkpoint_folder={folder}/checkpoints",
    ]


def run_small(path: Path, folder: Path) -> tuple[Config, dict]:
    config = load(path, small(path, folder))
    if config.twin.layout == "unet3d":
        config.dataset.record_length_bytes = 1
    elif config.twin.layout is not None:  # dlrm: one big file; bert: up to 500 shards, so that small ones have a sample each
        files, each = (1, 64) if config.twin.layout == "dlrm" else (4, 1)
        config.dataset.num_files_train, config.dataset.num_samples_per_file = files, each
        config.dataset.num_files_eval = config.dataset.eval_num_samples_per_file = 1
    set_quiet(True)
    document = run_workload(config, EmulationOptions())
    assert document is not None
    return config, document


def check_files(config: Config, document: dict, folder: Path) -> None:
    if not (config.workflow.train or config.workflow.checkpoint):
        assert document["generated"]["samples"] > 0
        return
    left = {path.name for path in (folder / "output").iterdir()}
    assert left >= {"summary.json", "0_output.json", "0_per_epoch_stats.json", "dlio.log", "metrics.parquet"}
    if config.workflow.train:
        assert document["iotwin"]["steps"] > 0
        assert document["iotwin"]["bytes_read"] > 0
    if config.workflow.evaluation:
        assert document["iotwin"]["evaluation_steps"] > 0
    if config.workflow.checkpoint:
        written = document["iotwin"]["checkpoint_files"]
        assert written and all(file["size_bytes"] > 0 for file in written)
        assert any((folder / "checkpoints").iterdir())


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_a_shipped_workload_runs(name: str, tmp_path: Path) -> None:
    path = SHIPPED / f"{name}.yaml"
    assert select([f"workload={name}"]).config.model.name != "default" or name == "default"
    check_files(*run_small(path, tmp_path), tmp_path)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason=_NO_REFERENCE)
@pytest.mark.parametrize("path", reference_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_workload_of_dlio_runs_unchanged(path: Path, tmp_path: Path) -> None:
    load(path)  # as it stands
    check_files(*run_small(path, tmp_path), tmp_path)


def test_what_the_paper_and_mlperf_storage_say_of_their_workloads() -> None:
    def of(name: str) -> Config:
        return select([f"workload={name}"]).config

    times = {name: of(name).train.computation_time for name in (
        "unet3d_v100", "unet3d_a100", "unet3d_h100", "resnet50_v100", "resnet50_a100", "resnet50_h100", "cosmoflow_v100",
        "cosmoflow_a100", "cosmoflow_h100", "bert_v100", "megatron-deepspeed",
    )}  # fmt: skip
    assert list(times.values()) == [1.3604, 0.636, 0.323, 0.195, 0.435, 0.224, 0.00936, 0.00551, 0.0035, 0.968, 2.44]
    assert of("unet3d").train.computation_time == StepTimeRegression(workload="unet3d")
    assert of("dlrm").num_gpus == 8 and of("dlrm").reader.sample_shuffle == "batches"
    assert (of("resnet50").train.computation_time, of("cosmoflow").metric.au) == (0.195, 0.7)


def test_a_workload_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"workload=unet3d_a10: not among those shipped \(did you mean 'unet3d_a100'\?\)"):
        select(["workload=unet3d_a10"])
    with pytest.raises(UsageError, match="no workload is given"):
        select(["++workload.reader.batch_size=4"])
    with pytest.raises(UsageError, match="no such directory"):
        select(["workload=unet3d"], tmp_path / "none")


def test_a_directory_of_ones_own_has_the_workloads_of_hydra(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "mine.yaml").write_text("model: {name: mine}\n")
    assert select(["workload=mine", "++workload.train.epochs=3"], tmp_path).config.train.epochs == 3
