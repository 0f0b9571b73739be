"""What the page cache holds of a file shows in how often a process that maps it faults."""

import mmap
import resource
from pathlib import Path

import pytest

from benchmark import config as c
from benchmark.config.recording import File, Op, write_recording
from datagen.datasets.recorded import write_recipe
from iotwin.loops import twin
from iotwin.loops.page_cache import cache_in_pages
from tests.benchmark.recordings import recording, row

_AROUND_BYTES = 1 << 16  # what the kernel maps at a fault, by default


def _faults(path: Path) -> tuple[int, int]:
    """Touch the file once in each stretch that a fault maps; return how often, and the faults of it that the kernel counted."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        offsets = range(0, len(mapped), _AROUND_BYTES)
        before = resource.getrusage(resource.RUSAGE_SELF)
        for offset in offsets:
            mapped[offset]
        after = resource.getrusage(resource.RUSAGE_SELF)
    return len(offsets), sum(getattr(after, name) - getattr(before, name) for name in ("ru_minflt", "ru_majflt"))


def test_what_was_just_written_is_mapped_page_by_page(tmp_path):
    path = tmp_path / "written"
    path.write_bytes(bytes(8 << 20))
    content = path.read_bytes()
    cache_in_pages(path)
    touches, faults = _faults(path)
    assert faults >= touches and path.read_bytes() == content


@pytest.mark.parametrize(
    ("maps", "fault_bytes", "read_before"),
    [(True, 4096, False), (True, 65_536, True), (False, 65_536, False)],
    ids=["one page a fault", "several pages a fault", "read by calls"],
)
@pytest.mark.parametrize("recorded", [False, True], ids=["structured", "recorded"])
def test_mapped_data_are_found_new_or_read_as_the_job_found_its_own(
    tmp_path, monkeypatch, maps, fault_bytes, read_before, recorded
):
    """Of the job's three faults one brought more, or less, than the others."""
    cached: list[str] = []
    monkeypatch.setattr(twin, "cache_in_pages", lambda path: cached.append(path.name))
    write_recipe(tmp_path / "dataset.csv", [("a.bin", 200_000), ("b.bin", 1_000)])
    brought = [fault_bytes, 4096 + 65_536 - fault_bytes, fault_bytes]
    if recorded:
        rows = [row(0, Op.TOUCH if maps else Op.READ, offset=0, size=size) for size in brought]
        write_recording(recording(rows, [File("a.bin", size_bytes=200_000)]), tmp_path / "twin.recording")
    else:
        reads = [f"0:0+{size}" for size in brought]
        config = c.Config(twin=c.Twin(train_files=["a.bin"], train_reads=reads, reader=c.TwinReader(mmap=maps)))
        c.dump(config, tmp_path / "twin.yaml")
    twin.generate_data(tmp_path)
    assert cached == (["a.bin", "b.bin"] if read_before else [])
