"""The twin's YAML: what is written is read back, and what is wrong is named."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark import config as workload
from benchmark.config import Config, Normal, Quantiles, dump, load
from tracing_tools.trace.errors import IotwinError, UsageError

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
    epochs=st.none() | st.lists(st.integers(1, 100)),
)
configs = st.builds(
    Config,
    model=st.builds(workload.Model, name=names),
    dataset=st.builds(workload.Dataset, data_folder=names, num_files_train=st.none() | st.integers(0, 1 << 40)),
    reader=st.builds(workload.Reader, batch_size=st.integers(1, 1000), preprocess_time=durations),
    train=st.builds(workload.Train, epochs=st.integers(1, 99), computation_time=durations, seed=st.integers(0, 2**63 - 1)),
    twin=st.builds(
        workload.Twin,
        source=names,
        assumptions=st.lists(names),
        first_step_time=st.none() | durations,
        train_files=st.none() | st.lists(file_names, unique=True),
        checkpoint=st.builds(workload.TwinCheckpoint, files=st.lists(checkpoint_files, max_size=3, unique_by=lambda f: f.name)),
    ),
)


@settings(max_examples=60, deadline=None)
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
        ("reader.odirect=true", "reader.odirect: a DLIO key that is not supported yet"),
        ("storage.storage_type=s3", "storage: a DLIO key that is not supported yet"),
        ("reader.batch_size=four", "reader.batch_size: expected int, got str"),
        ("reader.batch_size=0", "reader.batch_size: expected int >= 1"),
        ("reader.data_loader=tensorflow", "reader.data_loader: 'tensorflow' is not supported; use native"),
        ("reader.sample_shuffle=random", "reader.sample_shuffle: 'random' is not supported; use off or seed"),
        ("train.computation_time=-1", "train.computation_time: expected float >= 0.0"),
        ("train.computation_time=.inf", "train.computation_time: expected float"),
        ("train.computation_time={type: quantiles, values: [2, 1]}", "train.computation_time.values: quantiles must ascend"),
        ("train.computation_time={type: quantiles, values: []}", "train.computation_time.values: expected array of length >= 1"),
        ("twin.init_time=1e999", "twin.init_time: expected float"),
        ("workflow.generate_data=True", "workflow.generate_data: not supported; make the data set first"),
        ("twin.checkpoint.files=[]", "twin.checkpoint.files: workflow.checkpoint needs at least one file"),
        ("twin.checkpoint.files=[{name: ../../etc/x, write_sizes: [[1, 1]]}]", "must be a path inside checkpoint_folder"),
        ("twin.train_files=[/etc/passwd]", "must be a path inside data_folder"),
        ("twin.train_files=[a, a]", "twin.train_files: a name is listed twice"),
        ("reader=3", "reader: expected section, got int"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(twin_path: Path, override: str, expected: str) -> None:
    with pytest.raises(UsageError) as error:
        load(twin_path, [override])
    assert str(error.value).startswith(f"{twin_path}: ")
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
        (b"model: {name: x}\n", "section missing required field dataset"),
        (b"dataset: {data_folder: d, data_folder: &a [*a]}\n", "refers to itself"),
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
        with pytest.raises(UsageError, match=r"override|not a section"):
            load(twin_path, [override])


def test_a_failed_dump_leaves_the_old_file(twin: Config, twin_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = twin_path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(IotwinError, match="No space"):
        dump(twin, twin_path)
    assert twin_path.read_bytes() == before
    assert list(twin_path.parent.glob("*.partial")) == []
