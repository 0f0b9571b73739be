"""What a job and its trace keep when the tracer is killed, the disk fills up, or somebody presses Ctrl-C, at random instants.

The job counts its own calls and signals. It must end as it does untraced each time, and its calls must be recorded or counted as
lost: all of them, or after a kill all up to the kill's last half second, without a gap.
"""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from iotwin.trace_store.reader import Trace
from tests.conftest import small_disk
from tests.perf.figures import Figure

_ROUNDS = 20
_CALLS = 200_000
_STATUS = 7
_PRINTED = b"".join(b"%050d\n" % number for number in range(0, _CALLS, 1000))
_KIB = 1 << 10
_AGAIN_S = 0.25  # between one Ctrl-C and the next
_UNCOUNTED_S = 1.0  # a ledger is written every half second
_LONGEST_S = 120


@dataclass
class _Tally:
    """What was found wrong in the rounds of one fault."""

    job: list[str] = field(default_factory=list)
    count: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def figures(self, fault: str, detail: str) -> Iterator[Figure]:
        """Yield one figure for each thing that had to hold."""
        for what, wrong in (
            ("jobs with another output or exit status", self.job),
            ("recorded + lost is not what the job and the kernel counted", self.count),
            ("traces neither readable nor recovered", self.trace),
        ):
            said = f"of {_ROUNDS}; {detail}" + "".join(f"; {each}" for each in wrong[:3])
            yield Figure(f"{fault}: {what}", len(wrong), 0, detail=said)


class _Job:
    """The job of one round, under a tracer of its own in a process group of its own."""

    def __init__(self, program: Path, directory: Path, trace: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.trace, self._counts, self._shown = trace, directory / "counts", directory / "shown"
        self._counts.write_bytes(bytes(4096))
        command = [str(program), str(program.with_name("data")), str(self._counts), str(_CALLS)]
        iotwin = [sys.executable, "-m", "iotwin", "trace", "-o", str(trace), "--backend", "libbpf", "--"]
        with self._shown.open("wb") as shown, (directory / "said").open("wb") as said:
            self.tracer = subprocess.Popen([*iotwin, *command], stdout=shown, stderr=said, start_new_session=True)
        self.said = directory / "said"

    def counted(self) -> tuple[int, int, bool]:
        """The calls and signals that it has counted so far, and whether it has done all."""
        calls, signals, ended = struct.unpack("<3q", self._counts.read_bytes()[:24])
        return calls, signals, bool(ended)

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Wait for the condition, no longer than any machine needs; return whether it came."""
        deadline = time.monotonic() + _LONGEST_S
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def starts(self) -> bool:
        """Wait for its first call; False when the tracer ended without."""
        self.wait_until(lambda: self.counted()[0] or self.tracer.poll() is not None)
        return self.counted()[0] > 0

    def output_is_whole(self, shown: bool) -> bool:
        """Whether all that it printed is in the file: what the tracer showed, or the log."""
        return (self._shown if shown else self.trace / "logs" / "stdout").read_bytes() == _PRINTED


def _recovers(trace: Path) -> bool:
    recovering = [sys.executable, "-m", "iotwin", "recover", str(trace)]
    return subprocess.run(recovering, capture_output=True, check=False).returncode == 0


def _preads(trace: Trace, path: Path) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The offsets of the recorded preads of the job's file, in order."""
    files, events = trace.files(), trace.events_frame()
    ids = files.loc[files["path"] == str(path), "file_id"]
    return events.loc[events["file_id"].isin(ids) & (events["op"] == "pread64"), "offset"].to_numpy(np.int64)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        directory = Path(name)
        program, instants = directory / "counting", random.Random(0)
        subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("counting.c")], check=True)
        (directory / "data").write_bytes(bytes(8 * _CALLS))
        whole = _Job(program, directory / "whole", directory / "whole" / "t")
        whole.starts()
        begin = time.monotonic()
        whole.wait_until(lambda: whole.counted()[2])
        took_s = time.monotonic() - begin
        whole.tracer.wait()
        seen = Trace(whole.trace).manifest.seen or 0  # with what its loader does
        detail = f"a job of {_CALLS} calls in {took_s:.1f} s"
        yield from _kills(program, directory, instants, took_s).figures("kill -9 of the tracer", detail)
        yield from _full_disks(program, directory, instants, seen).figures("full disk", f"{detail}, 256 KiB to 24 MiB")
        yield from _interrupts(program, directory, instants, took_s, seen).figures("interrupts", f"{detail}, 1 to 3 each")


def _kills(program: Path, directory: Path, instants: random.Random, took_s: float) -> _Tally:
    tally = _Tally()
    for number in range(_ROUNDS):
        job = _Job(program, directory / f"kill-{number}", directory / f"kill-{number}" / "t")
        job.starts()
        time.sleep(instants.uniform(0, 1.1 * took_s))
        name, (before, _, _) = f"kill {number}", job.counted()
        os.kill(job.tracer.pid, signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        at_kill = job.counted()[0]
        job.tracer.wait()
        ended = job.wait_until(lambda job=job: job.counted()[2])  # type: ignore[misc]
        if not ended or not job.wait_until(lambda job=job: job.output_is_whole(shown=False)):  # type: ignore[misc]
            tally.job.append(f"{name}: {job.counted()}")
        status = json.loads((job.trace / "manifest.json").read_text())["status"]
        if status == "recording" and not _recovers(job.trace):
            tally.trace.append(name)
            continue
        trace = Trace(job.trace)
        offsets = _preads(trace, program.with_name("data"))
        late_s = (killed_ns - int(trace.manifest.end_ns or 0)) / 1e9 if status == "recording" else 0.0
        is_prefix = np.array_equal(offsets, 8 * np.arange(len(offsets)))
        lost = trace.manifest.lost_events
        is_counted = trace.manifest.seen == trace.manifest.events + lost
        if (
            not is_counted
            or (not lost and not is_prefix)
            or len(offsets) > at_kill
            or (late_s > _UNCOUNTED_S and before < _CALLS)
        ):
            tally.count.append(f"{name}: {len(offsets)} of {before} to {at_kill}, {lost} lost, {late_s:.2f} s")
    return tally


def _full_disks(program: Path, directory: Path, sizes: random.Random, seen: int) -> _Tally:
    tally = _Tally()
    for number in range(_ROUNDS):
        room = int(256 * _KIB * 96 ** sizes.random())
        with small_disk(directory / f"disk-{number}", room) as mount:
            job = _Job(program, directory / f"full-{number}", mount / "t")
            name, status = f"disk of {room >> 10} KiB", job.tracer.wait()
            if status != _STATUS or job.counted()[0] != _CALLS or not job.output_is_whole(shown=True):
                tally.job.append(f"{name}: status {status}, {job.counted()}")
            subprocess.run(["mount", "-o", "remount,size=256m", mount], check=True)
            if json.loads((job.trace / "manifest.json").read_text())["status"] == "recording" and not _recovers(job.trace):
                tally.trace.append(name)
                continue
            manifest = Trace(job.trace).manifest
            if not manifest.seen == manifest.events + manifest.lost_events == seen:
                tally.count.append(f"{name}: {manifest.events} + {manifest.lost_events} of {manifest.seen}, {seen}")
    return tally


def _interrupts(program: Path, directory: Path, instants: random.Random, took_s: float, seen: int) -> _Tally:
    tally = _Tally()
    for number in range(_ROUNDS):
        job = _Job(program, directory / f"interrupt-{number}", directory / f"interrupt-{number}" / "t")
        job.starts()
        times, send = instants.randint(1, 3), instants.choice([os.kill, os.killpg])
        kind = instants.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        time.sleep(instants.uniform(0, took_s))
        sent = 0
        for _ in range(times):
            if job.tracer.poll() is None and not job.counted()[2]:
                send(job.tracer.pid, kind)
                sent += 1
            time.sleep(_AGAIN_S)
        name, status = f"{kind.name} x {sent} of {times} by {send.__name__}", job.tracer.wait()
        calls, signals, _ = job.counted()
        # The last one may find the job at its end.
        if status != _STATUS or calls != _CALLS or not sent - 1 <= signals <= sent or not job.output_is_whole(shown=True):
            tally.job.append(f"{name}: status {status}, {calls} calls, {signals} signals")
        manifest = Trace(job.trace).manifest if (job.trace / "manifest.json").exists() else None
        if manifest is None or manifest.status != "complete":
            tally.trace.append(name)
            continue
        ended_early = times == 3 and manifest.seen is not None and manifest.seen < seen
        if manifest.seen != manifest.events + manifest.lost_events or (manifest.seen != seen and not ended_early):
            tally.count.append(f"{name}: {manifest.events} + {manifest.lost_events} of {manifest.seen}, {seen}")
    return tally
