"""What the page cache holds of a file shows in how often a process that maps it faults."""

import mmap
import resource
from pathlib import Path

import pytest

from iotwin.datagen.datasets.recorded import write_recipe
from iotwin.loops import twin_from_trace
from iotwin.loops.page_cache_state import FOLIO_BYTES, cache_in_pages, found_in_pages, page_faults
from iotwin.workload_yaml.recording import Op, RecordedFile, TwinRecording, write_recording
from tests.benchmark.recordings import recording, row

_AROUND_BYTES = 1 << 16  # what the kernel maps at a fault, by default


def _faults(path: Path) -> int:
    """Touch the file once in each stretch that a fault maps; return the faults of it that the kernel counted."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        before = resource.getrusage(resource.RUSAGE_SELF)
        for offset in range(0, len(mapped), _AROUND_BYTES):
            mapped[offset]
        after = resource.getrusage(resource.RUSAGE_SELF)
    return sum(getattr(after, name) - getattr(before, name) for name in ("ru_minflt", "ru_majflt"))


@pytest.mark.parametrize("stretches", [(0, 1, 2, 3), (1, 3)], ids=["all", "in part"])
def test_what_was_just_written_is_mapped_page_by_page(tmp_path, stretches):
    path = tmp_path / "written"
    path.write_bytes(bytes(4 * FOLIO_BYTES))
    content = path.read_bytes()
    cache_in_pages(path, [(stretch * FOLIO_BYTES, FOLIO_BYTES) for stretch in stretches])
    assert _faults(path) >= len(stretches) * FOLIO_BYTES // _AROUND_BYTES and path.read_bytes() == content


@pytest.mark.parametrize(
    ("maps", "fault_bytes", "read_before"),
    [(True, 4096, False), (True, 65_536, True), (False, 65_536, False)],
    ids=["one page a fault", "several pages a fault", "read by calls"],
)
def test_mapped_data_are_found_new_or_read_as_the_job_found_its_own(maps, fault_bytes, read_before):
    """Of the job's three faults one brought more, or less, than the others."""
    brought = [fault_bytes, 4096 + 65_536 - fault_bytes, fault_bytes]
    twin_of_job = _recording([(0, size) for size in brought], 200_000, maps)
    in_pages = dict(found_in_pages(page_faults(twin_of_job), [("a.bin", 200_000), ("b.bin", 1_000)]))
    assert in_pages == ({"a.bin": [(0, FOLIO_BYTES)], "b.bin": [(0, FOLIO_BYTES)]} if read_before else {})


def test_of_a_file_that_was_read_in_part_that_part_is_found_read():
    """More faults than elsewhere lie in the part that was read, as each maps less."""
    around = [(2 * FOLIO_BYTES + offset, 65_536) for offset in range(0, 10 * 65_536, 65_536)]
    faults = [*((stretch * FOLIO_BYTES, 4096) for stretch in (0, 1, 3)), *around]
    found = found_in_pages(page_faults(_recording(faults, 5 * FOLIO_BYTES)), [("a.bin", 5 * FOLIO_BYTES), ("b.bin", 1_000)])
    assert dict(found) == {"a.bin": [(2 * FOLIO_BYTES, FOLIO_BYTES)]}


def test_data_are_made_as_they_were_found(tmp_path, monkeypatch):
    cached: list[tuple[str, list[tuple[int, int]]]] = []
    monkeypatch.setattr(twin_from_trace, "cache_in_pages", lambda path, stretches: cached.append((path.name, stretches)))
    write_recipe(tmp_path / "dataset.csv", [("a.bin", 200_000)])
    write_recording(_recording([(0, 65_536)], 200_000), tmp_path / "twin.recording")
    twin_from_trace.generate_data(tmp_path)
    assert cached == [("a.bin", [(0, FOLIO_BYTES)])]


def _recording(faults: list[tuple[int, int]], size_bytes: int, maps: bool = True) -> TwinRecording:
    """Return the recording of a job that had these faults, or reads, (offset, bytes), of a.bin."""
    rows = [row(0, Op.TOUCH if maps else Op.READ, offset=offset, size=size) for offset, size in faults]
    return recording(rows, [RecordedFile("a.bin", size_bytes=size_bytes)])
