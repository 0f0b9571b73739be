"""The twin's YAML: what is written is read back, and what is wrong is named."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin import workload_yaml as workload
from iotwin.common.errors import IotwinError, UsageError
from iotwin.workload_yaml import Config, Normal, Quantiles, dump, load

seconds = st.floats(0, 1e6)
durations = st.one_of(
    seconds,
    st.builds(Normal, mean=seconds, stdev=seconds),
    st.builds(Quantiles, values=st.lists(seconds, min_size=1, max_size=20).map(sorted)),
)
# Text that YAML takes for something else, and that a careless writer would not quote.
awkward = ["off", "007", "1e3", "yes", "null", "~", "2026-01-01", "0x1f", "é", "a: b", "- x", "#"]
names = st.sampled_from(awkward) | st.text("ab_-. 1", min_size=1)
file_names = names.filter(lambda name: name.strip(".") != "" and "/" not in name)
checkpoint_files = st.builds(
    workload.CheckpointFile,
    name=file_names,
    write_sizes=st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1000)), min_size=1, max_size=5),
    fsync=st.booleans(),
    rename=st.booleans(),
    after=st.none() | st.lists(st.integers(1, 100)),
)
configs = st.builds(
    Config,
    model=st.builds(workload.Model, name=names),
    dataset=st.builds(workload.Dataset, data_folder=names, num_files_train=st.none() | st.integers(0, 1 << 40)),
    reader=st.builds(workload.Reader, batch_size=st.integers(1, 1000), preprocess_time=durations),
    train=st.builds(workload.Train, epochs=st.integers(1, 99), computation_time=durations, seed=st.integers(0, 2**63 - 1)),
    twin=st.builds(
        workload.Twin,
        assumptions=st.lists(names),
        epoch_warm_up_time=durations,
        train_files=st.none() | st.lists(file_names, unique=True),
        checkpoint=st.builds(workload.TwinCheckpoint, files=st.lists(checkpoint_files, max_size=3, unique_by=lambda f: f.name)),
    ),
)


@settings(max_examples=60)
@given(config=configs)
def test_what_is_dumped_is_loaded(config: Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("twin") / "twin.yaml"
    dump(config, path)
    assert load(path) == config
    assert [entry.name for entry in path.parent.iterdir()] == ["twin.yaml"]


def test_every_key_written_is_readable_by_any_yaml_reader(twin_path: Path) -> None:
    document = yaml.safe_load(twin_path.read_text())
    assert document["twin"]["checkpoint"]["files"][0]["write_sizes"] == [[1280, 2], [70000, 1]]
    assert document["reader"]["sample_shuffle"] == "seed"
    assert "prefetch_size" not in document["reader"]  # unknown values are left out, not written as null


def test_overrides_replace_values(twin_path: Path) -> None:
    config = load(twin_path, ["++workload.reader.batch_size=7", "train.computation_time={type: normal, mean: 1e-3}"])
    assert config.reader.batch_size == 7
    assert config.train.computation_time == Normal(mean=0.001)


def test_off_is_a_word_as_in_dlio(twin_path: Path) -> None:
    twin_path.write_text(twin_path.read_text().replace("sample_shuffle: seed", "sample_shuffle: off"))
    assert load(twin_path).reader.sample_shuffle == "off"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("reader.batchsize=4", "reader.batchsize: unknown key (did you mean 'batch_size'?)"),
        ("readers.batch_size=4", "readers: unknown key (did you mean 'reader'?)"),
        ("twin.checkpoint.files=[{nme: a, write_sizes: [[1, 1]]}]", "files[0].nme: unknown key (did you mean 'name'?)"),
        ("train.computation_time={type: normal, mean: 1, stddev: 2}", "time.stddev: unknown key (did you mean 'stdev'?)"),
        ("reader.transfer_size=1MiB", "transfer_size: expected int, got str; sizes are numbers of bytes, without a unit"),
        ("train.computation_time=5ms", "got str; times are numbers of seconds, without a unit"),
        ("train.computation_time={type: norml, mean: 1}", "train.computation_time.type: 'norml' is not supported; use normal or"),
        ("storage.storage_type=s4", "storage.storage_type: 's4' is not supported; use local_fs or"),
        ("model.parallelism={zero_stage: 3, pipeline: 2}", "zero_stage: stage 3 shards the model over all ranks"),
        ("model.type=transformer", "model.num_layers: a transformer has at least 1"),
        ("train.computation_time={type: uniform, min: 2, max: 1}", "train.computation_time.min: must not be above max"),
        ("reader.batch_size=four", "reader.batch_size: expected int, got str"),
        ("reader.batch_size=0", "reader.batch_size: expected int >= 1"),
        ("reader.sample_shuffle=on", "reader.sample_shuffle: 'on' is not supported; use off or seed or random"),
        ("train.computation_time=-1", "train.computation_time: expected float >= 0.0"),
        ("train.computation_time=.inf", "train.computation_time: expected float"),
        ("train.computation_time={type: quantiles, values: [2, 1]}", "train.computation_time.values: quantiles must ascend"),
        ("train.computation_time={type: quantiles, values: []}", "train.computation_time.values: expected array of length >= 1"),
        ("twin.init_time=1e999", "twin.init_time: expected float"),
        ("workflow={train: false, checkpoint: no}", "workflow.train: nothing is left to do"),
        ("twin.checkpoint.files=[{name: ../../etc/x, write_sizes: [[1, 1]]}]", "must be a path inside checkpoint_folder"),
        ("twin.checkpoint={format: tar}", "twin.checkpoint.format: 'tar' is not supported; use zip or legacy or dcp or slots"),
        ("twin.checkpoint={persist_threads: 0}", "twin.checkpoint.persist_threads: expected int >= 1"),
        ("twin.checkpoint={format: slots, keep: 2}", "twin.checkpoint.format: slots are overwritten in turns; leave out keep"),
        ("twin={checkpoint: {format: slots}, resume: {}}", "twin.checkpoint.format: slots are not read back"),
        ("twin.train_files=[/etc/passwd]", "must be a path inside data_folder"),
        ("twin.train_files=[a, a]", "twin.train_files: a name is listed twice"),
        ("reader=3", "reader: expected section, got int"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(twin_path: Path, override: str, expected: str) -> None:
    with pytest.raises(UsageError) as error:
        load(twin_path, [override])
    # What does not fit together is the file's as much as the override's.
    together = ("zero_stage: stage 3", "transformer has at least", "nothing is left")
    culprit = str(twin_path) if any(word in expected for word in together) else f"'{override}'"
    assert str(error.value).startswith((f"{culprit}: ", f"'{override}': "))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not a workload"),
        (b"- 1\n", "is not a workload"),
        (b"reader: [1\n", "twin.yaml:2: is not YAML"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"!!python/object/apply:os.system [id]\n", "is not YAML"),
        (b"hosts: 127.0.0.1\n", "hosts: unknown key"),
        (b"dataset: {record_length: 1, record_length_bytes: 2}\n", "given twice"),
        (b"reader: {batch_size: 1}\ntrain: {}\nreader: {}\n", "twin.yaml:3: is not YAML: the key 'reader' is given twice"),
        (b"reader: {batchsize: null}\n", "reader.batchsize: unknown key (did you mean 'batch_size'?)"),
        (b"defaults: [[a]]\n", "defaults: '['a']' is no entry"),
        (b"defaults: [../../a]\n", "defaults: '../../a' leads out of this file's folder"),
        (b"model: {name: '${modl.name}'}\n", "model.name: ${modl.name} names no value (did you mean"),
        (b"model: {name: '${output.folder}'}\noutput: {folder: '${model.name}'}\n", "leads back to itself"),
        (b"model: {name: 'a${reader}'}\n", "is a section or a list"),
        (b"model: {name: '${hydra:job.num}'}\n", "'${hydra:job.num}' is not supported"),
        (b"model: {name: '${oc.env:IOTWIN_UNSET}'}\n", "the environment variable IOTWIN_UNSET is not set"),
        (b"train: {epochs: 1.5}\n", "train.epochs: expected int, got float"),
        (b"train: {epochs: '5'}\n", "train.epochs: expected int, got str"),
        (b"workflow: {train: maybe}\n", "workflow.train: expected bool, got str"),
        (b"defaults: [twin]\n", "its defaults lead back to itself"),
        (b"defaults: [other]\n", "defaults: other.yaml: not in"),
        (b"dataset: {data_folder: &a [*a]}\n", "refers to itself"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "twin.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        load(path)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_malformed_override_are_refused(tmp_path: Path, twin_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "none.yaml")
    for override in ("reader.batch_size", "++=3", "reader..x=1", "model.name.x=1"):
        with pytest.raises(UsageError, match=r"override|got section"):
            load(twin_path, [override])


def test_a_failed_dump_leaves_the_old_file(twin: Config, twin_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = twin_path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(IotwinError, match="No space"):
        dump(twin, twin_path)
    assert twin_path.read_bytes() == before
    assert list(twin_path.parent.glob("*.partial")) == []


def test_both_spellings_of_dlio_are_one(tmp_path: Path) -> None:
    path = tmp_path / "dlio.yaml"
    path.write_text(
        "model: unet3d\nframework: tensorflow\n"
        "dataset: {record_length: 114660.07, record_length_stdev: 5, record_length_resize: 9}\n"
        "data_reader: {batch_size: 3, prefetch_size: 0, file_shuffle: false}\n"
        "train: {computation_time: {mean: 2, stdev: 1}}\nevaluation: {eval_time: 8, eval_time_stdev: 3}\n"
        "checkpoint: {type: all_ranks, model_size: 77, time_between_checkpoints: -1}\n"
    )
    config = load(
        path, ["++workload.data_reader.read_threads=4", "++workload.reader.preprocess_time_stdev=1", "hydra.run.dir=there"]
    )
    assert (config.model.name, config.model.model_size_bytes) == ("unet3d", 77)
    sizes = (
        config.dataset.record_length_bytes,
        config.dataset.record_length_bytes_stdev,
        config.dataset.record_length_bytes_resize,
    )
    assert sizes == (114660.07, 5, 9)
    reader = config.reader
    assert (reader.batch_size, reader.read_threads, reader.prefetch_size, reader.file_shuffle) == (3, 4, None, "off")
    assert config.train.computation_time == Normal(mean=2, stdev=1)
    assert (config.evaluation.eval_time, reader.preprocess_time) == (Normal(mean=8, stdev=3), Normal(mean=0, stdev=1))
    assert (config.checkpoint.type, config.checkpoint.time_between_checkpoints) == ("all_ranks", 0.0)
    assert config.output.folder == "there"


def test_every_value_has_its_origin(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "train: {epochs: 2, computation_time: {type: normal, mean: 1}}\nreader: {batch_size: 2}\n"
    )
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: [base, _self_]\nreader: {batch_size: 3, read_threads: 4}\n")
    rows = {name: (value, origin) for name, value, origin in workload.compose(path, ["++workload.reader.read_threads=5"]).rows()}
    assert rows["train.epochs"] == (2, "base.yaml")
    assert rows["train.computation_time"] == ({"type": "normal", "mean": 1.0, "stdev": 0.0}, "base.yaml")
    assert rows["reader.batch_size"] == (3, "mine.yaml")
    assert rows["reader.read_threads"] == (5, "++workload.reader.read_threads=5")
    assert rows["reader.file_shuffle"] == ("off", "default")
