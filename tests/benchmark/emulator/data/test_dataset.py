"""Which files are training and which evaluation samples."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iotwin.benchmark.emulator.data.dataset import SampleSet, open_dataset
from iotwin.common.errors import IotwinError
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workload_yaml import Config, Dataset, Reader, Twin, Workflow

ALL = {f"case_{index:05d}" for index in range(10)}
EVALUATION = {"case_00000", "case_00005"}  # the layout's own split


def opened(
    folder: Path, layout: str = "unet3d", *, train: int | None = None, evaluation: int | None = None, **twin: object
) -> list[list[str]]:
    """The names of the training and of the evaluation samples."""
    config = Config(
        workflow=Workflow(evaluation=True),
        dataset=Dataset(data_folder=str(folder), format="npy", num_files_train=train, num_files_eval=evaluation),
        reader=Reader(batch_size=1),
        twin=Twin(layout=layout, **twin),  # type: ignore[arg-type]
    )
    return [names(samples) for samples in open_dataset(config)]


def names(samples: SampleSet) -> list[str]:
    return [Path(files[0]).name.removesuffix(".npy").removesuffix("_x") for files in samples.files]


def test_the_layout_splits_cases_unless_told_otherwise(cases: Path) -> None:
    assert opened(cases) == [sorted(ALL - EVALUATION), sorted(EVALUATION)]
    assert opened(cases, train=3, evaluation=1) == [sorted(ALL - EVALUATION)[:3], ["case_00000"]]


def test_named_cases_are_taken_in_the_order_given(cases: Path) -> None:
    train, evaluation = ["case_00007", "case_00000"], ["case_00003"]
    assert opened(cases, train_files=train, eval_files=evaluation) == [train, evaluation]


def test_no_case_is_for_both_when_one_list_is_given(cases: Path) -> None:
    assert opened(cases, train_files=["case_00000"]) == [["case_00000"], ["case_00005"]]
    assert opened(cases, eval_files=["case_00001"])[0] == sorted(ALL - EVALUATION - {"case_00001"})


def test_a_case_is_both_its_files_and_their_size(cases: Path) -> None:
    config = Config(dataset=Dataset(data_folder=str(cases), format="npy"), twin=Twin(layout="unet3d"))
    samples = open_dataset(config).train
    assert samples.files[0] == (str(cases / "case_00001_x.npy"), str(cases / "case_00001_y.npy"))
    assert samples.read(0) == sum(Path(path).stat().st_size for path in samples.files[0])
    assert samples.size_bytes == sum(Path(path).stat().st_size for files in samples.files for path in files)


def test_npy_files_lie_in_one_folder_or_as_dlio_lays_them_out(tmp_path: Path) -> None:
    for name in ("train/b.npy", "train/a.npy", "valid/c.npy", "d.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.zeros(3))
    (tmp_path / "train" / "notes.txt").write_text("not a sample")
    assert opened(tmp_path, "npy") == [["a", "b"], ["c"]]
    assert opened(tmp_path, "npy", train_files=["d.npy", "train/b.npy"], eval_files=["valid/c.npy"]) == [["d", "b"], ["c"]]
    with pytest.raises(IotwinError, match="has no evaluation samples"):
        opened(tmp_path / "train", "npy")


def test_dlrm_needs_no_test_file_unless_it_evaluates(tmp_path: Path) -> None:
    (tmp_path / DlrmLayout.TRAIN_NAME).write_bytes(bytes(30 * DlrmLayout.SAMPLE_BYTES))
    config = Config(dataset=Dataset(data_folder=str(tmp_path), format="bin"), twin=Twin(layout="dlrm"))
    dataset = open_dataset(config)
    assert (len(dataset.train), len(dataset.evaluation)) == (30, 0)
    config.workflow.evaluation = True
    with pytest.raises(IotwinError, match=DlrmLayout.TEST_NAME):
        open_dataset(config)


def test_what_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros(3))
    (tmp_path / "b.npy").write_bytes(b"")
    with pytest.raises(IotwinError, match=r"b\.npy: is empty"):
        opened(tmp_path, "npy", train_files=["a.npy"], eval_files=["b.npy"])
    with pytest.raises(IotwinError, match=r"none\.npy: No such file"):
        opened(tmp_path, "npy", train_files=["none.npy"], eval_files=["a.npy"])
    with pytest.raises(IotwinError, match=r"has 1 training samples, but dataset\.num_files_train is 2"):
        opened(tmp_path, "npy", train=2, train_files=["a.npy"], eval_files=["a.npy"])


@settings(max_examples=200)
@given(place=st.integers(0, 200), bytes_=st.binary(max_size=30), removed=st.integers(0, 300))
@example(place=0, bytes_=b"PK\x03\x04", removed=4)
@example(place=61, bytes_=b"(9999999999999,)", removed=3)
def test_a_damaged_file_is_read_or_named_never_a_traceback(tmp_path: Path, place: int, bytes_: bytes, removed: int) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(50))
    content = path.read_bytes()
    path.write_bytes(content[:place] + bytes_ + content[place + removed :])
    try:
        SampleSet([(str(path),)]).read(0)
    except IotwinError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


def test_a_data_set_of_other_sample_sizes_is_noted(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = (
        open_dataset(Config(dataset=Dataset(data_folder=str(cases), format="npy"), twin=Twin(layout="unet3d"))).train.size_bytes
        // 8
    )
    for expected, noted in ((size, False), (2 * size, True)):
        dataset = Dataset(data_folder=str(cases), format="npy", record_length_bytes=expected)
        open_dataset(Config(dataset=dataset, twin=Twin(layout="unet3d")))
        assert ("training samples are" in capsys.readouterr().err) is noted
