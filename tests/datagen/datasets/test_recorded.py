"""Stand-ins for recorded data sets: names and sizes to the byte, and recipes that cannot write elsewhere."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import UsageError
from iotwin.datagen.datasets.recorded import read_recipe, write_file, write_recipe
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import RecordedLayout
from iotwin.datagen.verify import verify
from tests.conftest import run_iotwin

FILES = (
    ("case_00000_x.npy", 5000),
    ("case_00000_y.npy", 129),
    ("deep/er/raw.bin", 1),
    ("tiny.npy", 40),
    ("big.npy", (3 << 20) + 7),
)


def test_files_have_their_recorded_names_and_sizes(tmp_path):
    generate(RecordedLayout(FILES), tmp_path / "data", samples=len(FILES))
    for name, size_bytes in FILES:
        assert (tmp_path / "data" / name).stat().st_size == size_bytes
    verify(tmp_path / "data")


def test_as_much_as_a_huge_page_is_written_at_once(tmp_path):
    """So that the page cache can keep it in one: a job that maps what it has just written faults once for it."""
    sizes: list[int] = []
    write_file(RecordedLayout((("big.bin", (5 << 20) + 7),)), 1, 1, tmp_path, 0, sizes.append)
    assert sizes == [2 << 20, 2 << 20, (1 << 20) + 7]


def test_npy_stand_ins_are_whole_npy_files(tmp_path):
    generate(RecordedLayout(FILES), tmp_path / "data", samples=len(FILES))
    for name, size_bytes in (FILES[0], FILES[1], FILES[4]):
        array = np.load(tmp_path / "data" / name)
        assert 0 < size_bytes - array.nbytes <= 128


@given(st.integers(129, 2_000_000))
def test_every_npy_size_is_met(size_bytes):
    from iotwin.datagen.datasets.recorded import _npy_header_within

    header = _npy_header_within(size_bytes)
    shape = np.lib.format.read_array_header_1_0(io.BytesIO(header[8:]))[0]
    assert len(header) + shape[0] == size_bytes


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), st.integers(1, 1 << 50)), min_size=1, max_size=5))
def test_a_recipe_is_read_as_it_was_written(tmp_path_factory, files):
    path = tmp_path_factory.mktemp("recipe") / "dataset.csv"
    write_recipe(path, files)
    try:
        expected = RecordedLayout(tuple(files))
    except UsageError as error:
        with pytest.raises(UsageError) as refused:
            read_recipe(path)
        assert str(refused.value) == str(error)
    else:
        assert read_recipe(path) == expected


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.npy", "a/../../b", "", "manifest.json"])
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(UsageError):
        RecordedLayout(((name, 10),))


def test_the_command_line(tmp_path):
    write_recipe(tmp_path / "dataset.csv", FILES[:2])
    done = run_iotwin("generate", "--recipe", tmp_path / "dataset.csv", "-o", tmp_path / "data", "--json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "case_00000_x.npy").stat().st_size == 5000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "columns name, size_bytes"),
        ("name,size_bytes\nx,many\n", "columns name, size_bytes"),
        ("name,size_bytes\nx,\n", "line 2"),
        ("", "columns name, size_bytes"),
        ("name,size_bytes\n", "without files"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(tmp_path, text, says):
    (tmp_path / "dataset.csv").write_text(text)
    done = run_iotwin("generate", "--recipe", tmp_path / "dataset.csv", "-o", tmp_path / "data")
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()
