"""What the job leaves in the page cache: recorded as block requests when the kernel writes it back, else counted in a note."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import run_iotwin
from tests.docker_engine import client
from tests.tracing_tools.backends.test_block import device_of
from tests.tracing_tools.targets.test_targets import NO_NETWORK

pytestmark = pytest.mark.root
MIB = 1 << 20
WRITE = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.pwrite(fd, bytes(16 << 20), 0);"


@pytest.fixture
def folder(tmp_path):
    if device_of(tmp_path) is None:
        pytest.skip(f"{tmp_path} is on no block device")
    return tmp_path


def trace_of(folder: Path, *words: str | Path) -> Trace:
    result = run_iotwin("trace", "-o", folder / "t", "--detail", "data,block", *words)
    assert result.returncode == 0, result.stderr
    return Trace(folder / "t")


def traced(folder: Path, script: str) -> Trace:
    return trace_of(folder, "--", sys.executable, "-c", script, folder / "written")


def bytes_written(trace: Trace, name: str) -> int:
    """Bytes of the write requests for the file of that name."""
    requests, files = trace.block(), trace.files()
    is_its = requests["file_id"].map(files["path"]).fillna("").astype(str).str.endswith(name)
    return int(requests[(requests["op"] == "write") & is_its]["size_bytes"].sum())


def unwritten_bytes(trace: Trace) -> int:
    found = re.findall(r"(\d+) bytes that the job wrote were still in the page cache", "\n".join(trace.manifest.notes))
    return sum(map(int, found))


def assert_recorded(trace: Trace, expected_bytes: int) -> None:
    """Check that the writes of `written` are recorded.

    On a busy machine the kernel may skip the programs of a request in interrupts. Its bytes then count as not written back.
    """
    recorded = bytes_written(trace, "/written")
    assert recorded + unwritten_bytes(trace) == expected_bytes and recorded > expected_bytes / 2


def test_what_the_kernel_writes_back_for_the_job_is_recorded(folder):
    assert_recorded(traced(folder, WRITE + "os.sync()"), 16 * MIB)


def test_what_is_not_written_back_by_the_end_is_counted(folder):
    for attempt in range(20):  # until nobody on the machine syncs while the job runs
        (folder / str(attempt)).mkdir()
        trace = traced(folder / str(attempt), WRITE)
        if not bytes_written(trace, "/written"):
            assert unwritten_bytes(trace) == 16 * MIB
            return
    pytest.fail("what the job wrote was always written back by its end")


def test_what_is_deleted_before_it_is_written_back_is_not_missing(folder):
    assert unwritten_bytes(traced(folder, WRITE + "os.close(fd); os.unlink(sys.argv[1])")) == 0


def test_pages_written_again_are_counted_each_time_and_nothing_else_of_their_folio(folder):
    """The kernel keeps a file in folios of several pages, of which only the dirty ones are written back."""
    again = "\nfor page in range(0, 4096, 37): os.pwrite(fd, bytes(4096), page * 4096)\n"
    trace = traced(folder, WRITE + "os.fsync(fd)" + again + "os.fsync(fd)")
    assert_recorded(trace, 16 * MIB + len(range(0, 4096, 37)) * 4096)


def test_the_part_of_a_file_that_a_neighbour_wrote_is_not_the_jobs(folder):
    """The neighbour's pages are dirty, and in the same file, when the kernel writes the job's."""
    beyond = "import os, sys; os.pwrite(os.open(sys.argv[1], os.O_RDWR), bytes(1 << 20), 16 << 20)"
    outside = f"open({str(folder / 'go')!r}, 'w').close()\nwhile not os.path.exists({str(folder / 'done')!r}): pass\nos.sync()"
    waiting = f'until [ -e {folder}/go ]; do sleep 0.01; done; "$@"; touch {folder}/done'
    other = subprocess.Popen(["sh", "-c", waiting, "sh", sys.executable, "-c", beyond, str(folder / "written")])
    try:
        trace = traced(folder, WRITE + "\n" + outside)
    finally:
        assert other.wait() == 0
    assert_recorded(trace, 16 * MIB)


@contextmanager
def file_system(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a folder on a device that nobody else uses, and the file of the device's counters."""
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(128 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image], check=True)
    made = subprocess.run(["mount", "-o", "loop", image, mounted], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device can be mounted here: {made.stderr.strip()}")
    try:
        number = mounted.stat().st_dev
        yield mounted, Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    finally:
        subprocess.run(["umount", mounted], check=True)


def device_bytes(counters: Path) -> int:
    return int(counters.read_text().split()[6]) * 512


def test_a_containers_bytes_equal_its_devices_or_the_rest_is_counted(folder, test_image):
    with file_system(folder) as (mounted, counters):
        os.sync()
        before = device_bytes(counters)
        write = "dd if=/dev/zero of=/output/written bs=1M count=16 2>/dev/null"
        trace = trace_of(folder, "--image", test_image, *NO_NETWORK, "--volume", f"{mounted}:/output", "--", "sh", "-c", write)
        recorded, missing = bytes_written(trace, "/written"), unwritten_bytes(trace)
        # More if somebody syncs while it writes: a folio that is written to again is then missing as a whole.
        assert 0 <= recorded + missing - 16 * MIB < MIB
        # Of the device's own count the rest is the file system's: its journal and tables.
        assert recorded <= device_bytes(counters) - before < recorded + MIB
        os.sync()
        assert 16 * MIB <= device_bytes(counters) - before < 17 * MIB


def test_what_is_written_back_while_a_container_runs_is_recorded(folder, test_image):
    """The container's program ends after a `sync` of the machine's, whose requests are charged to nobody's cgroup under v1."""
    with file_system(folder) as (mounted, _):
        write = "dd if=/dev/zero of=/output/written bs=1M count=16 2>/dev/null; sync"
        options = ["--image", test_image, *NO_NETWORK, "--volume", f"{mounted}:/output"]
        trace = trace_of(folder, *options, "--", "sh", "-c", write)
    assert_recorded(trace, 16 * MIB)


def evict(folder: Path) -> None:
    """Have the page cache forget the files in `folder`."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def cold_requests(folder: Path, image: str, words: list[str | Path]) -> pd.DataFrame:
    evict(Path(client().info()["DockerRootDir"]) / "overlay2")
    trace = trace_of(folder, *words, "sh", "-c", "ls / >/dev/null")
    assert not any("the io controller is not on" in note for note in trace.manifest.notes)
    return trace.block()


def test_what_the_container_runtime_reads_is_not_the_jobs(folder, test_image):
    requests = cold_requests(folder, test_image, ["--image", test_image, *NO_NETWORK, "--"])
    assert len(requests)  # of the container's own programs
    assert not requests["comm"].fillna("").str.startswith("runc").any(), requests.to_string()


def test_a_container_that_a_command_starts_is_charged_from_its_start(folder, test_image):
    run = ["docker", "run", "--rm", "--network=none", "--name=iotwin-charged", test_image]
    requests = cold_requests(folder, test_image, ["--container", "iotwin-charged", "--", *run])
    assert len(requests) and requests["cgroup"].nunique() == 1
    assert not requests["comm"].fillna("").str.startswith("runc").any(), requests.to_string()
