"""A synthetic recording of data loaders, finished in a process with the imports of a tracer only."""

import time
from pathlib import Path

import numpy as np

from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.finish import finish_trace
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.raw.records import EVENT, RING_HEADER_BYTES, pack_call

_MEGABYTE = 1_000_000


def peak_megabytes(pid: int | str) -> float:
    """The most memory that the process has held; 0 when it has just ended. (A child's rusage would count its parent's, too.)"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / _MEGABYTE for line in lines if line.startswith("VmHWM:")), 0.0)


def finish_made_up(path: str, count: int) -> None:
    """Record `count` synthetic events at `path`, finish them, print the seconds and megabytes taken."""
    directory, burst = Path(path), 20_000
    manifest = Manifest("recording", "test", Host("h", "k", 1, 1, "x86_64"), Target(["x"]))
    rng = np.random.default_rng(1)
    now_ns = 10**9
    with Recording(directory, manifest) as recording:
        recording.append_clock()
        for first in range(0, count, burst):
            events = np.zeros(burst, EVENT)
            half = burst // 2
            for lane in range(2):  # as the CPUs' buffers are drained, one after the other
                rows = slice(lane * half, (lane + 1) * half)
                duration_ns = rng.integers(300, 900, half)
                duration_ns[::1000] = 10_000_000
                events["start_ns"][rows] = now_ns + np.cumsum(rng.integers(700, 1500, half)) - duration_ns
                events["duration_ns"][rows] = duration_ns
                events["pid"][rows] = events["tid"][rows] = 100 + lane
            number = np.arange(first, first + burst)
            now_ns = int(events["start_ns"].max())
            events["header"] = EVENT.itemsize - RING_HEADER_BYTES
            events["result"] = events["requested"] = 4096
            events["offset"], events["inode"], events["device"] = number * 4096 % (1 << 26), 1000 + number // 5000, 8 << 20
            events["fd"], events["call_flags_cpu"] = 3, pack_call(17, 8)
            recording.append_events(events)
        recording.append_journal("ledger", {"seen": count, "lost": {}})
    begin = time.monotonic()
    finish_trace(directory, manifest)
    seconds = time.monotonic() - begin
    print(seconds, peak_megabytes("self"))


def make_images(folder: Path, count: int) -> None:
    """Write noise as JPEGs of many sizes, in four folders of a class each, as ImageFolder reads them."""
    from PIL import Image

    draw = np.random.default_rng(1)
    for number in range(count):
        path = folder / f"class{number % 4}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        side = int(draw.integers(200, 500))
        Image.fromarray(draw.integers(0, 255, (side, side), dtype=np.uint8)).save(path)
