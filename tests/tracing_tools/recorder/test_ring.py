"""Recordings of real jobs that keep the newest events, or end when something happens, compared with the jobs' own counts."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from iotwin.common.errors import UsageError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.end_conditions import RecordingEnd, Until, parse_until
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.tracing_tools.targets.target import Scope, TraceTarget
from tests.conftest import ROOT
from tests.processes import call, one_line

# Reads one file that is always open, and many that are not, until the ring's 21st segment shows that the first was overwritten.
JOB = """
import os, time
held, child = os.open("held", os.O_RDWR | os.O_CREAT), os.fork()
os.write(held, b"x" * 10)
number = 0
while max(os.listdir("t/raw")) < "segment-000000020":
    for _ in range(500):
        if child:
            os.pread(held, 1, number)
        number += 1
    if not child:
        os.close(os.open(f"passing{number % 7}", os.O_RDWR | os.O_CREAT))
    time.sleep(0.002)
if not child:
    os._exit(0)
os.waitpid(child, 0)
print(number)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.root
def test_a_real_job_in_a_ring(here):
    """The trace has the job's last reads, each once, under the name of a file that was opened long before."""
    made = trace_command([sys.executable, "-S", "-c", JOB], Path("t"), TraceOptions(forward_output=False, ring_bytes=1 << 19))
    trace = Trace(Path("t"))
    assert made.exit_status == 0 and not made.lost_events
    assert made.events + made.ring.overwritten_events == made.seen
    files, events = trace.files(), trace.events_frame()
    held = events[events["file_id"].isin(files.loc[files["path"] == f"{here}/held", "file_id"]) & (events["op"] == "pread64")]
    count = int((trace.path / "logs" / "stdout").read_text())
    assert sorted(held["offset"]) == list(range(count - len(held), count)) and 500 < len(held) < count
    assert not files["path"].str.startswith("unnamed").any()
    assert made.ring.overwritten_events and made.ring.overwritten_bytes >= 80 * made.ring.overwritten_events
    role = trace.processes().set_index("pid")["role"].astype(str)
    assert role[made.target.root_pid] == "rank"


@pytest.mark.root
def test_the_commands_read_a_rings_trace_as_any_other(here):
    shutil.copy(ROOT / "docs" / "train.py", here)
    generate(Unet3dLayout(scale=0.1), here / "data", samples=12, workers=1)
    options = TraceOptions(forward_output=False, ring_bytes=1 << 17)
    made = trace_command([sys.executable, "train.py", "--data", "data", "--epochs", "3"], Path("t"), options)
    assert made.exit_status == 0 and made.events + made.ring.overwritten_events == made.seen
    phases = Trace(Path("t")).phases()
    assert len(phases) and (phases["start_ns"] >= made.start_ns).all()
    assert call("fit", "t", "-o", "twin.yaml").returncode == 0
    assert json.loads(call("compare", "t", "t", "--json").stdout)["overall"] == pytest.approx(1)
    found = json.loads(call("info", "t", "--json").stdout)
    assert found["manifest"]["ring"]["overwritten_events"] == made.ring.overwritten_events and found["files"]
    rows = json.loads(call("stats", "t", "--json").stdout)["rows"]
    assert sum(row["calls"] for row in rows) == made.events


@pytest.mark.root
def test_a_signal_ends_the_recording_and_not_the_job(here):
    code = f"""
import os, signal, time
fd = os.open("data", os.O_RDWR | os.O_CREAT)
[os.pread(fd, 1, number) for number in range(500)]
os.kill({os.getpid()}, signal.SIGUSR1)
time.sleep(0.3)
[os.pread(fd, 1, 1000) for number in range(500)]
print("done")
"""
    before = signal.getsignal(signal.SIGUSR1)
    options = TraceOptions(forward_output=False, until=Until("signal"))
    made = trace_command([sys.executable, "-S", "-c", code], Path("t"), options)
    assert made.exit_status == 0 and (Path("t") / "logs" / "stdout").read_text() == "done\n"
    assert any("SIGUSR1" in text for text in made.notes) and signal.getsignal(signal.SIGUSR1) == before
    events = Trace(Path("t")).events_frame()
    assert sorted(events.loc[events["op"] == "pread64", "offset"].tail(500)) == list(range(500))


@pytest.mark.root
def test_further_signals_do_not_end_iotwin(here):
    """The first one ends the recording; the others arrive while the trace is finished, and while iotwin waits for the job."""
    job = "for number in 1 2 3 4 5 6; do kill -USR1 $PPID; sleep 0.1; done; exit 3"
    assert call("trace", "-o", "t", "--until", "signal", "--", "sh", "-c", job).returncode == 3
    assert any("SIGUSR1" in text for text in Trace(Path("t")).manifest.notes)


@pytest.mark.root
@pytest.mark.parametrize(("status", "note"), [(4, "at the command's failure, with exit status 4"), (0, "(failure) never held")])
def test_a_failure_ends_the_recording(here, status, note):
    """Processes that a failed command left are not waited for."""
    script = f"sleep 0.5 & exit {status}"
    made = trace_command(["sh", "-c", script], Path("t"), TraceOptions(forward_output=False, until=Until("failure")))
    assert made.exit_status == status and any(note in text for text in made.notes)
    assert (made.end_ns - made.start_ns < 450_000_000) == bool(status)


def test_conditions():
    assert parse_until("signal") == Until("signal") and parse_until(" failure ") == Until("failure")
    assert parse_until("stall>0.3 for 5s") == Until("stall", 0.3, 5 * 10**9)
    assert parse_until("stall > 30%") == Until("stall", 0.3, 10 * 10**9)
    for text in ("", "stalls>3", "stall>1", "stall>130%", "stall>0.3 for 1ms", "stall>0.3 for x", "stall<0.3"):
        with pytest.raises(UsageError):
            parse_until(text)
    with pytest.raises(UsageError, match="whose exit status it learns"):
        RecordingEnd(None, Until("failure"), TraceTarget(Scope()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ring", "1MiB"], "take 64 MiB or more"),
        (["--ring", "64MiB", "--backend", "strace"], "which strace does not make"),
        (["--until", "never"], "is no condition"),
        (["--ring", "9999999TiB"], "larger than any"),
    ],
)
def test_wrong_requests(here, options, message):
    result = call("trace", "-o", "t", *options, "--", "true")
    assert result.returncode in (1, 2) and message in one_line(result)
    assert not Path("t").exists()
