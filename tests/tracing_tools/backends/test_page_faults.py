"""Page faults on a mapped file are recorded one for one, however the page cache was filled."""

import os
import subprocess
import sys

import numpy as np
import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import run_iotwin
from tests.processes import call

_TOUCHES = 608
_PAGE = 4096
_PROGRAM = """
import mmap, os, random, resource, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ)
places = random.Random(1).sample(range(size // 4096), int(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF)
for page in places:
    mapped[page * 4096]
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt)
"""


def _evict(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _read_whole(path):
    _evict(path)
    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.root
@pytest.mark.parametrize("fill", [lambda path: None, _evict, _read_whole], ids=["as written", "cold", "read ahead"])
def test_as_many_faults_are_recorded_as_the_kernel_counts(tmp_path, fill):
    path, program = tmp_path / "train.bin", tmp_path / "touch.py"
    np.zeros(60_000_000, np.uint8).tofile(path)
    program.write_text(_PROGRAM)
    fill(path)
    result = run_iotwin(
        "trace", "-o", tmp_path / "t", "--detail", "data,mmap", "--", sys.executable, program, path, str(_TOUCHES)
    )
    assert result.returncode == 0, result.stderr
    trace = Trace(tmp_path / "t")
    faults = trace.events_frame(columns=["op", "file_id", "offset", "result"]).merge(trace.files(), on="file_id")
    faults = faults[(faults["op"] == "page_fault") & (faults["path"] == str(path))]
    assert 0.99 <= len(faults) / int(result.stdout) <= 1.01
    assert (faults["offset"] % _PAGE == 0).all() and (faults["offset"] < 60_000_000).all()
    assert (faults["result"] >= _PAGE).all()


@pytest.mark.root
def test_mapped_data_is_noticed_without_any_option(tmp_path):
    path, program = tmp_path / "train.bin", tmp_path / "touch.py"
    np.zeros(3 << 20, np.uint8).tofile(path)
    program.write_text(_PROGRAM)
    command = ["--", sys.executable, program, path, "100"]
    said = call("trace", "-o", tmp_path / "t", *command).stderr
    assert "3 MiB of the data set (1 file) are mapped into memory" in said and "--detail data,mmap" in said
    assert "are mapped into memory" not in call("trace", "-o", tmp_path / "u", "--detail", "data,mmap", *command).stderr


@pytest.mark.root
def test_memory_that_processes_share_is_no_data(tmp_path):
    """A buffer of memfd_create, as torch shares tensors by, is mapped and read like a file that was opened by nobody."""
    program = tmp_path / "share.py"
    program.write_text(
        "import mmap, os\n"
        "fd = os.memfd_create('shared')\n"
        "os.ftruncate(fd, 1 << 20)\n"
        "mapped = mmap.mmap(fd, 1 << 20)\n"
        "os.pread(fd, 1 << 16, 0)\n"
    )
    said = call("trace", "-o", tmp_path / "t", "--", sys.executable, program).stderr
    files = Trace(tmp_path / "t").files()
    assert "are mapped into memory" not in said
    assert files.loc[files["path"].str.startswith("/memfd:"), "kind"].tolist() == ["temporary"]
    assert not (files["kind"] == "dataset").any()
