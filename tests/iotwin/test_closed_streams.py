"""Standard streams that the caller has closed (``>&-``) or that cannot be written: the status counts, no traceback is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import PATIENCE_S, ROOT
from tests.synthetic import Job, write_job

_IOTWIN = [sys.executable, "-P", "-m", "iotwin"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return write_job(tmp_path_factory.mktemp("closed") / "t", Job(files=4, epochs=1))


def _run(redirected: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *_IOTWIN, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", [["info"], ["stats", "--csv"], ["info", "--json"]])
def test_a_closed_stream_is_no_error(trace, words, streams):
    done = _run(streams, words[0], trace, *words[1:])
    assert done.returncode == 0 and not done.stderr
    assert bool(done.stdout) == (">&-" not in streams.replace("2>&-", ""))
    if "--json" in words and done.stdout:
        assert json.loads(done.stdout)


def test_what_is_wrong_is_told_all_the_same(tmp_path):
    done = _run(">&-", "info", tmp_path / "absent")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "no such trace" in done.stderr
    assert _run(">&- 2>&-", "info", tmp_path / "absent").returncode == 1
    assert _run(">&- 2>&-", "nothing").returncode == 2


def test_what_is_written_goes_into_no_file_of_ours(trace, tmp_path):
    """The first file that is opened would have the number of the closed stream, and take what is printed."""
    done = _run(">&- 2>&-", "export", trace, "-o", tmp_path / "t.json")
    assert done.returncode == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_a_full_device_is_told_in_one_line(trace):
    done = _run(">/dev/full", "info", trace)
    assert done.returncode == 1 and done.stderr == "iotwin info: No space left on device\n"


@pytest.mark.parametrize("streams", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_job_s_output_is_kept_and_its_stdin_as_it_is(tmp_path, streams):
    done = _run(streams, "trace", "--backend", "strace", "-o", tmp_path / "t", "--", "sh", "-c", "echo out; cat; exit 3")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    recorded = Trace(tmp_path / "t")
    assert (recorded.path / "logs" / "stdout").read_text() == "out\n"
    assert ("Bad file descriptor" in (recorded.path / "logs" / "stderr").read_text()) == ("<&-" in streams)
