"""Damage behind an intact Parquet footer: every flipped byte is noticed when it is read, in one line that names the file."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace
from tests.processes import call
from tests.synthetic import Job, write_job


@pytest.fixture(scope="module")
def trace_path(tmp_path_factory) -> Path:
    return write_job(tmp_path_factory.mktemp("whole") / "job.trace", Job(files=60, epochs=4))


def data_pages(path: Path, number: int = 0) -> tuple[int, int]:
    """First byte and end of the pages of one column."""
    column = pq.read_metadata(path).row_group(0).column(number)
    begin = column.dictionary_page_offset or column.data_page_offset
    return begin, begin + column.total_compressed_size


def part_of(trace: Path) -> Path:
    return next((trace / "events.parquet").glob("*.parquet"))


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def read_whole(path: Path) -> None:
    for _ in Trace(path).events():
        pass


@settings(max_examples=40)
@given(share=st.floats(0.1, 0.999), mask=st.integers(1, 255))
def test_every_flipped_byte_of_a_page_is_noticed(trace_path, tmp_path_factory, share, mask):
    damaged = shutil.copytree(trace_path, tmp_path_factory.mktemp("damaged") / "t")
    begin, end = data_pages(part_of(damaged))
    # The first bytes are the page's header, which no checksum covers.
    flip(part_of(damaged), begin + int(share * (end - begin)), mask)
    for read in (read_whole, lambda path: Trace(path).events_frame()):
        with pytest.raises(IotwinError, match="damaged") as error:
            read(damaged)
        assert "\n" not in str(error.value)
        assert str(damaged / "events.parquet") in str(error.value)


@pytest.mark.parametrize("table", ["files", "processes", "phases", "samples/cpu"])
def test_a_damaged_small_table_is_named(trace_path, tmp_path, table):
    damaged = shutil.copytree(trace_path, tmp_path / "t")
    path = damaged / f"{table}.parquet"
    begin, end = data_pages(path)
    flip(path, (begin + end) // 2)
    trace = Trace(damaged)
    with pytest.raises(IotwinError, match="damaged") as error:
        trace.samples("cpu") if table.startswith("samples") else getattr(trace, table)()
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_commands_end_in_one_line(trace_path, tmp_path):
    damaged = shutil.copytree(trace_path, tmp_path / "t")
    for number in range(len(schema.EVENTS)):  # commands read the columns they need
        begin, end = data_pages(part_of(damaged), number)
        flip(part_of(damaged), (begin + end) // 2)
    for arguments in (["info", damaged], ["compare", damaged, trace_path], ["report", damaged, "-o", tmp_path / "r.html"]):
        result = call(*arguments, "--quiet")
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1 and str(damaged) in result.stderr
    assert not (tmp_path / "r.html").exists()


def test_what_the_consumer_of_a_batch_raises_stays_as_it_is(trace_path):
    with pytest.raises(OSError, match="mine"):
        for _ in Trace(trace_path).events():
            raise OSError("mine")
