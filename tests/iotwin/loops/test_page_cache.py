"""What the page cache holds of a file shows in how often a process that maps it faults."""

import mmap
import resource
from pathlib import Path

from iotwin.loops.page_cache import cache_in_pages

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
