"""Files as DLIO, its forks and Hydra write them: every key and the ways to spell its value, and how files are put together."""

from pathlib import Path

import pytest
import yaml

from iotwin.benchmark.emulator.data.train_eval_files import open_folder
from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Gamma, Normal, compose, load, select

# Every key of DLIO, of the artifact's fork and of MLCommons' fork, with a value that is not its default. Where two keys say the
# same, the section `_OTHERS` has the other one.
EVERY_KEY = """
framework: tensorflow
model:
  {name: unet3d, type: cnn, model_size_bytes: 499_153_191, model_datatype: bf16, optimizer_datatype: fp16,
   optimization_groups: [1, 2], num_layers: 2, layer_parameters: [3],
   parallelism: {tensor: 2, pipeline: 2, data: 2, zero_stage: 1},
   transformer: {vocab_size: 5, hidden_size: 8, ffn_hidden_size: 9, num_attention_heads: 4, num_kv_heads: 2}}
workflow: {generate_data: Yes, train: on, evaluation: "True", checkpoint: YES, profiling: True}
num_gpus: 8
storage:
  {storage_type: s3, storage_root: bucket, storage_library: minio, storage_options: {access_key_id: a, secret_access_key: s,
   endpoint_url: "http://h:1", region: us-west-2, s3_force_path_style: "True", s3_max_attempts: "7"}}
dataset:
  {data_folder: d, format: hdf5, num_files_train: 1e3, num_files_eval: 4.0, num_samples_per_file: 2,
   eval_num_samples_per_file: 3,
   record_length_bytes: 1.5e5, record_length_bytes_stdev: 12.5, record_length_bytes_resize: 2, record_dims: [4, 1e1],
   record_element_type: float32, num_subfolders_train: 2, num_subfolders_eval: 3, file_prefix: p, keep_files: No,
   generation_buffer_size: 1, compression: gzip, compression_level: 1, enable_chunking: true, chunk_size: 8, interleave: on,
   hdf5: {chunk_dims: [2, 2], num_dset_per_record: 2, max_shape: [8, 8]}, data_gen_method: dgen, write_threads: 2,
   skip_listing: true, listing_validation_interval: 10, post_generation_settle_seconds: 1.5,
   parquet: {columns: [a, {name: b, dtype: int64, size: 2, read: off}], row_group_size: 3, read_mode: row_group,
             generation_batch_size: 4}}
reader:
  {data_loader: native_dali, data_loader_classname: m.C, reader_classname: m.R, data_loader_sampler: index, batch_size: 2,
   batch_size_eval: 3, read_threads: 0, computation_threads: 2, prefetch_size: 4, file_shuffle: random, sample_shuffle: seed,
   shuffle_size: 7, read_type: memory, file_access: mpio, transfer_size: 262144, preprocess_time: {mean: 1, stdev: .5},
   multiprocessing_context: spawn, pin_memory: no, odirect: Yes, dont_use_mmap: yes, transformed_record_dims: [3],
   transformed_record_element_type: int16}
train:
  {epochs: 3, computation_time: {type: gamma, shape: 2, scale: 1e-3}, total_training_steps: 9, seed: 4, seed_change_epoch: off}
evaluation:
  {eval_time: 8.9027, eval_time_stdev: 3.9, eval_after_epoch: 2, epochs_between_evals: 3, eval_after_step: 4,
   steps_between_evals: 5, total_eval_steps: 6}
checkpoint:
  {checkpoint_folder: c, checkpoint_after_epoch: 2, epochs_between_checkpoints: 3, steps_between_checkpoints: 4, fsync: true,
   checkpoint_after_step: 5, type: all_ranks, mode: subset, recovery_rank_shift: True, rank_sync: on,
   time_between_checkpoints: 1, num_checkpoints_write: 2, num_checkpoints_read: 3, randomize_tensor: no,
   ksm: {madv_mergeable_id: 1, high_ram_trigger: 2, low_ram_exit: 3, await_time: 4}, checkpoint_mechanism_classname: m.M,
   ckpt_write_sz_q1: 1, ckpt_write_sz_mean: 2, ckpt_write_sz_std: 3, ckpt_write_sz_min: 4}
output: {folder: o, log_file: l, metric: {exclude_start_steps: 2, exclude_end_steps: 3}}
profiling: {profiler: trace, iostat_devices: [sda, sdb]}
metric: {au: 0.7}
"""


def test_every_key_of_dlio_and_its_forks_is_known_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "every.yaml"
    path.write_text(EVERY_KEY)
    workload = compose(path, [])
    ours = ("twin.", "train.computation_")  # sections and keys that DLIO lacks
    usual = {name: value for name, value, origin in workload.rows() if origin == "default" and not name.startswith(ours)}
    assert set(usual) == {
        "workflow.debug",
        "workflow.query",
        "dataset.entropy",
        "dataset.dedup",
        "dataset.record_length_distribution",
        "dataset.record_length_histogram",
    }
    config = workload.config
    assert (config.workflow.train, config.workflow.evaluation, config.reader.pin_memory) == (True, True, False)
    dataset = config.dataset
    assert (dataset.num_files_train, dataset.num_files_eval, dataset.record_dims) == (1000, 4, [4, 10])
    assert [(column.name, column.read) for column in dataset.parquet.columns] == [("a", True), ("b", False)]
    assert config.train.computation_time == Gamma(shape=2, scale=0.001)
    assert (config.reader.preprocess_time, config.evaluation.eval_time) == (Normal(1, 0.5), Normal(8.9027, 3.9))
    folder, _ = open_folder(config)
    assert folder.options == {
        "key": "a",
        "secret": "s",
        "endpoint_url": "http://h:1",
        "client_kwargs": {"region_name": "us-west-2"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 7}},
    }
    config.storage.storage_options["endpoint"] = "x"
    with pytest.raises(UsageError, match=r"storage_options\.endpoint: unknown \(did you mean 'endpoint_url'\?\)"):
        open_folder(config)


def test_every_key_by_itself_may_be_null_and_be_overridden(tmp_path: Path) -> None:
    document = yaml.safe_load(EVERY_KEY)
    path = tmp_path / "nulls.yaml"
    path.write_text(
        yaml.safe_dump({name: dict.fromkeys(section) for name, section in document.items() if isinstance(section, dict)})
    )
    assert load(path) == load(path, ["++workload.reader=null", "model={name: null, type: null}"])
    assert load(path, ["++workload.reader={batch_size: 5, read_threads: 3}"]).reader.batch_size == 5


def test_files_are_put_together_as_hydra_does(tmp_path: Path) -> None:
    for name, text in {
        "workload/base.yaml": "# @package _global_\nworkload:\n  model: {name: base, type: cnn}\n  train: {epochs: 2, seed: 1}\n",
        "workload/last.yaml": "train: {seed: 9}\n",
        "workload/mine.yaml": (
            "defaults:\n- base\n- /reader: fast\n- checkpoint@checkpoint: [small]\n- optional none\n"
            "- override hydra/job_logging: disabled\n- profiling:\n- _self_\n- last@_here_\n"
            "train: {epochs: 3, seed: 5}\nhydra: {run: {dir: there}, job: {chdir: false}}\n"
        ),
        "reader/fast.yaml": "read_threads: 7\nbatch_size: 2\n",
        "workload/checkpoint/small.yaml": "fsync: on\n",
        "workload/placed.yaml": "# @package workload.reader\nbatch_size: 11\n",
        "workload/user.yaml": "defaults: [unet3d_h100, placed]\nmodel: user\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    config, origins, *_ = select(["workload=mine", "hydra.job.num=1", "hydra/launcher=x"], tmp_path)
    assert (config.model.name, config.train.epochs, config.train.seed, config.output.folder) == ("base", 3, 9, "there")
    assert (config.reader.read_threads, config.checkpoint.fsync, origins["train.seed"]) == (7, True, "last.yaml")
    user = select(["workload=user"], tmp_path).config
    assert (user.model.name, user.reader.batch_size, user.train.computation_time) == ("user", 11, 0.323)  # of one that is shipped


def test_values_may_name_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch")
    path = tmp_path / "named.yaml"
    path.write_text(
        "model: net\n"
        "dataset:\n  data_folder: ${oc.env:SCRATCH}/${workload.model}\n"
        "  record_length: 5\n  record_length_stdev: ${.record_length}\n"
        "reader: {<<: {batch_size: 3}, batch_size_eval: '${reader.batch_size}'}\n"
        "train: {epochs: '${workload.reader.batch_size}', computation_time: {type: normal, mean: '${..seed}'}, seed: 6}\n"
        "output:\n  folder: ${oc.env:UNSET_HERE,out}/${now:%Y}_${oc.env:${train.seed}X,z}\n"
        "  log_file: ${model.name}.${framework}\n"
    )
    config = load(path, ["++workload.checkpoint.checkpoint_folder=${dataset.data_folder}/c"])
    assert config.checkpoint.checkpoint_folder == "/scratch/net/c"
    assert (config.dataset.record_length_bytes_stdev, config.reader.batch_size_eval, config.train.epochs) == (5, 3, 3)
    assert config.train.computation_time == Normal(mean=6)
    assert config.output.folder.startswith("out/20") and config.output.folder.endswith("_z")
    assert config.output.log_file == "net.pytorch"  # a default
