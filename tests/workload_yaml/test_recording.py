"""Recordings as files: read back equal, and refused in one line when anything in them is not sound."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.workload_yaml.recording import (
    COLUMNS,
    LABELS,
    Op,
    Pipe,
    RecordedBatches,
    RecordedFile,
    RecordedPass,
    TwinRecording,
    read_recording,
    write_recording,
)
from tests.benchmark.recordings import recording, row


def sound() -> TwinRecording:
    """Two processes: the first starts the second and waits for what it writes to a pipe."""
    rows = [
        row(0, Op.START, 1),
        row(0, Op.PIPE_READ, 0, size=4),
        row(0, Op.OPEN),
        row(0, Op.READ, 0, offset=0, size=9),
        row(0, Op.JOIN, 1),
        row(1, Op.PIPE_WRITE, 0, size=4),
        row(1, Op.END),
    ]
    return recording(rows, [RecordedFile("a/b.bin", size_bytes=9)], [-1, 0], [0, 1], [Pipe()])


def test_a_recording_is_read_back_equal(tmp_path: Path) -> None:
    write_recording(sound(), tmp_path / "x.recording")
    found = read_recording(tmp_path / "x.recording")
    assert found.header == sound().header
    assert all(np.array_equal(found.columns[name], sound().columns[name]) for name in COLUMNS)


def test_a_recording_holds_its_header_once(tmp_path: Path) -> None:
    write_recording(sound(), tmp_path / "x.recording")
    assert (tmp_path / "x.recording").read_bytes().count(b"b.bin") == 1


HEADERS = {
    "leads out": {"files": [RecordedFile("../etc/passwd")]},
    "of 'a'": {"files": [RecordedFile("/a")]},
    "has -1 bytes": {"files": [RecordedFile("a", size_bytes=-1)]},
    "without a parent": {"parents": [-1, 1]},
    "belong to no process": {"threads": [0, 5]},
    "names what is not there": {"pipes": []},
    "version 2": {"version": 2},
}


@pytest.mark.parametrize(("says", "changed"), HEADERS.items(), ids=list(HEADERS))
def test_headers_that_are_not_sound_are_refused(tmp_path: Path, says: str, changed: dict[str, object]) -> None:
    made = sound()
    write_recording(replace(made, header=msgspec.structs.replace(made.header, **changed)), tmp_path / "x.recording")
    with pytest.raises(IotwinError, match=says if says != "of 'a'" else "leads out") as error:
        read_recording(tmp_path / "x.recording")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("column", "index", "value"),
    [("op", 0, 99), ("subject", 0, 7), ("subject", 3, -1), ("thread", 6, 9), ("think_ns", 2, -5), ("size", 3, -1),
     ("offset", 3, -2), ("subject", 0, 0)],
)  # fmt: skip
def test_rows_that_are_not_sound_are_refused(tmp_path: Path, column: str, index: int, value: int) -> None:
    made = sound()
    made.columns[column][index] = value
    write_recording(made, tmp_path / "x.recording")
    with pytest.raises(IotwinError, match="no sound recording"):
        read_recording(tmp_path / "x.recording")


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 1 << 20), value=st.integers(0, 255), cut=st.integers(0, 400))
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: int) -> None:
    path = tmp_path_factory.mktemp("damaged") / "x.recording"
    write_recording(sound(), path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content[: len(content) - cut])
    try:
        found = read_recording(path)
    except IotwinError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert found.rows == sound().rows


def test_a_missing_recording_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(IotwinError, match="copy it next to the YAML"):
        read_recording(tmp_path / "none.recording")


def labelled() -> TwinRecording:
    """A rank whose loader has delivered one batch."""
    made = sound()
    batches = RecordedBatches([RecordedPass(0, True, 1, 1)], [1], [1], [1], [2], [3], [4], [5])
    labels = {name: np.full(made.rows, 0 if name == "label" else -1, kind) for name, kind in LABELS.items()}
    return TwinRecording(msgspec.structs.replace(made.header, batches=batches), made.columns | labels)


def test_labels_are_read_back_equal(tmp_path: Path) -> None:
    write_recording(labelled(), tmp_path / "x.recording")
    found = read_recording(tmp_path / "x.recording")
    assert found.batches == labelled().batches and found.columns.keys() == COLUMNS.keys() | LABELS.keys()
    with pytest.raises(IotwinError, match="no batches"):
        _ = sound().batches


@pytest.mark.parametrize(
    ("says", "changed"),
    [
        ("without a pass", {"loader": [1, 1]}),
        ("without a pass", {"taken_ns": []}),
        ("without batches", {"passes": [RecordedPass(0, True, 1, 9)]}),
        ("without batches", {"passes": [RecordedPass(0, True, 0, 0), RecordedPass(0, True, 1, 1)]}),
        ("not there", {"loader": [2]}),
        ("not there", {"passes": [RecordedPass(-1, True, 1, 1)]}),
        ("out of bounds", {"computed_ns": [-1]}),
        ("out of bounds", {"samples": [1 << 60]}),
        ("do not train", {"passes": [RecordedPass(0, False, 1, 1)]}),
    ],
)
def test_batches_that_are_not_sound_are_refused(tmp_path: Path, says: str, changed: dict[str, object]) -> None:
    made = labelled()
    header = msgspec.structs.replace(made.header, batches=msgspec.structs.replace(made.batches, **changed))
    write_recording(replace(made, header=header), tmp_path / "x.recording")
    with pytest.raises(IotwinError, match=says) as error:
        read_recording(tmp_path / "x.recording")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("column", "value"), [("label", 3), ("label", -1), ("batch", 1), ("batch", -2)])
def test_labels_that_are_not_sound_are_refused(tmp_path: Path, column: str, value: int) -> None:
    made = labelled()
    made.columns[column][2] = value
    write_recording(made, tmp_path / "x.recording")
    with pytest.raises(IotwinError, match="a label that is none"):
        read_recording(tmp_path / "x.recording")
