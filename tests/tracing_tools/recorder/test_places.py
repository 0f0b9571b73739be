"""Places that are not like other disks: read-only, without inodes, another file system, and no temporary directory at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends import choose_backend as backends
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import one_line

pytestmark = pytest.mark.root
IOTWIN = [sys.executable, "-P", "-m", "iotwin"]
# The job's own directory stays as it is, being a mount of its own by then.
WITHOUT_TEMPORARY = """
mount --bind "$1" "$1"
for place in /tmp /var/tmp /usr/tmp /dev/shm; do
    if [ -d $place ]; then mount --rbind $place $place; mount -o remount,bind,ro $place; fi
done
cd /proc
shift
exec "$@"
"""


def among_mounts(script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script with these words in a mount namespace of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-euc", script, "bash", *words],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("backend", ["strace", "preload"])
def test_a_trace_needs_no_temporary_directory(tmp_path, backend):
    """It ended in "No usable temporary directory found" and a list."""
    if reason := backends.unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    words = ("trace", "-o", tmp_path / "t", "--backend", backend, "--", "cat", "/etc/hostname")
    done = among_mounts(WITHOUT_TEMPORARY, tmp_path, *IOTWIN, *words)
    assert done.returncode == 0 and done.stdout == Path("/etc/hostname").read_text(), done.stderr
    assert "/etc/hostname" in set(Trace(tmp_path / "t").files()["path"])


def test_what_needs_a_temporary_directory_says_which_setting_names_one(tmp_path):
    script = f"export HOME=/proc XDG_CACHE_HOME=\n{WITHOUT_TEMPORARY}"
    words = ("generate", "unet3d", "-o", f"file://{tmp_path}/store", "--samples", "1", "--scale", "0.05")
    done = among_mounts(script, tmp_path, *IOTWIN, *words)
    assert done.returncode == 1 and "set TMPDIR" in one_line(done)


@pytest.mark.parametrize(
    "words", [["trace", "--backend", "strace"], ["generate", "unet3d", "--samples", "1"], ["merge", "t", "u"]]
)
def test_a_read_only_place_is_named_as_it_was_given(tmp_path, words):
    (tmp_path / "ro").mkdir()
    if words[0] == "merge":
        assert run_iotwin("trace", "-o", tmp_path / "t", "--backend", "strace", "--quiet", "--", "true").returncode == 0
        shutil.copytree(tmp_path / "t", tmp_path / "u")
    command = ["--", "touch", str(tmp_path / "ran")] if words[0] == "trace" else []
    script = 'mount -t tmpfs -o ro none "$1/ro"; cd "$1"; shift; exec "$@"'
    done = among_mounts(script, tmp_path, *IOTWIN, *words, "-o", tmp_path / "ro" / "out", *command)
    assert done.returncode == 1 and f"{tmp_path}/ro/out: Read-only file system" in one_line(done)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("inodes", [11, 13, 14, 15, 16])
def test_a_disk_without_inodes_costs_the_trace_and_not_the_job(tmp_path, inodes):
    """strace that could make no file for a thread held the job for ever."""
    (tmp_path / "few").mkdir()
    mount = f'mount -t tmpfs -o nr_inodes={inodes} none "$1/few"'
    script = f'{mount}; cd "$1"; shift; status=0; "$@" || status=$?; cp -r few kept; exit $status'
    job = f"touch {tmp_path}/ran; for i in 1 2 3 4; do cat /etc/hostname >/dev/null; done; exit 7"
    done = among_mounts(
        script, tmp_path, *IOTWIN, "trace", "-o", tmp_path / "few" / "t", "--backend", "strace", "--", "sh", "-c", job
    )
    assert "Traceback" not in done.stderr and "/proc/self/fd" not in done.stderr
    if not (tmp_path / "ran").exists():
        assert done.returncode == 1 and f"{tmp_path}/few/t" in one_line(done) and not list((tmp_path / "kept").iterdir())
        return
    assert done.returncode == 7, done.stderr
    kept = tmp_path / "kept" / "t"
    if (kept / "raw").exists():
        assert run_iotwin("recover", kept).returncode == 0
    manifest = Trace(kept).manifest
    assert manifest.lost_events and any("strace ended before the command" in note for note in manifest.notes)


def test_another_file_system_takes_traces_and_data_sets(tmp_path):
    if "xfs" not in Path("/proc/filesystems").read_text().split():
        pytest.skip("this kernel has no xfs")
    if shutil.which("mkfs.xfs") is None:
        pytest.skip("mkfs.xfs (xfsprogs) is not installed")
    with (tmp_path / "image").open("wb") as image:
        image.truncate(400 << 20)
    subprocess.run(["mkfs.xfs", "-q", tmp_path / "image"], check=True)
    (tmp_path / "xfs").mkdir()
    script = """
    mount -o loop "$1/image" "$1/xfs" || exit 77
    cd "$1/xfs"; shift
    "$@" generate unet3d -o data --samples 2 --scale 0.05 --quiet
    "$@" generate unet3d -o data --verify --quiet
    "$@" trace -o t --quiet --backend strace -- dd if=data/manifest.json of=direct bs=4096 count=1 conv=fsync 2>/dev/null
    exec "$@" info t
    """
    done = among_mounts(script, tmp_path, *IOTWIN)
    if done.returncode == 77:
        pytest.skip("no loop device here")
    assert done.returncode == 0 and ", xfs\n" in done.stdout and "no event lost" in done.stdout, done.stdout + done.stderr
