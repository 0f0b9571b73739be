"""Synthetic jobs, call by call, each of which is hard to understand: what fit is tested on."""

import numpy as np

from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made

SAMPLES, CHUNK, BATCH = 48, 50_000, 4  # of `chunks_and_labels`


def chunks_and_labels(folder, seed: int = 1, thread: bool = False, opened: str = "by_loaders") -> Trace:
    """Two epochs over one file by a loader each: an index of 500 bytes, a chunk, a label; first a model is read, by the rank.

    With `thread`, the chunk is read by a thread of the loader's, of another id in each. The file may be `opened` by the rank.
    """
    made, rng = Made(), np.random.default_rng(seed)
    made.process(1000, 1, "rank")
    model, data = made.file("/models/start.pt", "checkpoint", 400_000), made.file("/data/all.h5", size=1_000 + SAMPLES * 51_000)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    now = made.call(made.call(5, 1000, "openat", model), 1000, "read", model, 0, 300_000)
    for epoch in range(2):
        loader = made.process(1001 + epoch, 1000, "loader", now, now + 5_000)
        if opened != "once" or not epoch:
            now = made.call(now + 5, loader if opened == "by_loaders" else 1000, "openat", data)
        for batch in rng.permutation(SAMPLES).reshape(-1, BATCH):
            made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, loader, "read", asked, None, 30)
            for sample in batch.tolist():
                now = made.call(now + 1, loader, "pread64", data, 200, 500)
                now = made.call(now, loader, "pread64", data, 1_000 + sample * 51_000, CHUNK, tid=loader + 50 * thread)
                now = made.call(now, loader, "pread64", data, 1_000 + sample * 51_000 + CHUNK, 8)
            now = made.call(now, loader, "write", given, None, 3000)
            now = 20 + made.call(now, 1000, "read", given, None, 3000)
        now = made.write_file(now, 1000, f"/out/epoch_{epoch}.pt", 1_000_000)
    return made.trace(folder / "t")


def images_opened_three_times(folder, sizes=(100_000, 20_000)) -> Trace:
    """Three epochs over files. A library opens each file twice to read its first 12 KiB, and then opens and reads it whole."""
    made, rng, now = Made(), np.random.default_rng(1), 10.0
    made.process(1000, 1, "rank")
    files = [(made.file(f"/d/{i:03}.nii.gz", size=sizes[i % 2]), sizes[i % 2]) for i in range(24)]
    for _ in range(3):
        for number in rng.permutation(24).tolist():
            file, size = files[number]
            for amount in (12_288, 12_288, size):
                now = made.call(now, 1000, "openat", file)
                for offset in range(0, amount, 4_096):
                    now = made.call(now, 1000, "read", file, offset, min(4_096, amount - offset))
                now = made.call(now, 1000, "close", file)
            now += 20
    return made.trace(folder / "t")


def sampled_with_replacement(folder, checkpoint_bytes: int = 40_000_000, exit_status: int = 0) -> Trace:
    """A rank that reads 120 random stretches of one file, some of them more than once, and writes more than it reads."""
    made, rng, now = Made(exit_status), np.random.default_rng(1), 10.0
    rank, data = made.process(1000, 1, "rank"), made.file("/data/big.bin", size=20_000_000)
    now = made.call(now, rank, "openat", data)
    for step in range(120):
        now = 20 + made.call(now, rank, "read", data, int(rng.integers(200)) * 100_000, 100_000)
        if step % 40 == 39:
            now = made.write_file(now, rank, f"/out/step_{step}.ckpt", checkpoint_bytes)
    return made.trace(folder / "t")


def delivered_late(folder, batches: int = 12) -> Trace:
    """A loader reads two whole files a batch, two batches ahead; it delivers each third batch after it has read the next one."""
    made, now, late = Made(), 10.0, list[int]()
    made.process(1000, 1, "rank")
    made.process(1001, 1000, "loader", 5)
    requests, results = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    files = [made.file(f"/d/{number:03}.bin", size=50_000 + number) for number in range(2 * batches)]
    for _ in range(2):
        now = made.call(now, 1000, "write", requests, None, 30)
    for batch in range(batches):
        now = made.call(now + 0.2, 1001, "read", requests, None, 30)
        for file in files[2 * batch : 2 * batch + 2]:
            now = made.read_file(now + 0.5, 1001, file)
        late.append(batch)
        if batch % 3:
            for each in late:
                now = made.call(now, 1001, "write", results, None, 3000)
                now = made.call(now, 1000, "read", results, None, 3000)
                now = made.call(now + 20, 1000, "write", requests, None, 30) if each + 2 < batches else now + 20
            late.clear()
    return made.trace(folder / "t")


def read_by_threads(folder, of_eight: int, main_is_seen: bool = True) -> Trace:
    """A rank that reads 96 samples of one file, a step each; of eight of them its two other threads read so many, in turn."""
    made, now = Made(), 10.0
    rank, data = made.process(1000, 1, "rank"), made.file("/data/samples.bin", size=96 * 100_000)
    made.call(now, rank, "openat", data, tid=1000 if main_is_seen else 1003)
    for step in range(96):
        tid = 1001 + step % 2 if step % 8 < of_eight else rank
        now = 20 + made.call(now, rank, "read", data, step * 100_000, 100_000, tid=tid)
    return made.trace(folder / "t")


def crops(folder, of_one_file: int = 1, drawn: bool = False) -> Trace:
    """A loader reads the head and a random crop of a file of 30, two a batch; each is opened for so many crops in turn."""
    made, now, rng = Made(), 10.0, np.random.default_rng(1)
    made.process(1000, 1, "rank")
    made.process(1001, 1000, "loader", 5)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    files = [made.file(f"/d/{number:03}.wav", size=200_000 + number) for number in range(30)]
    order = np.concatenate([rng.integers(30, size=30) if drawn else rng.permutation(30) for _ in range(4)])
    for turn in range(len(order) * of_one_file):
        if turn % 2 == 0:
            made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, 1001, "read", asked, None, 30)
        file = files[order[turn // of_one_file]]
        now = now if turn % of_one_file else made.call(now, 1001, "openat", file)
        now = made.call(now, 1001, "read", file, 0, 44)
        now = made.call(now + 0.01, 1001, "read", file, int(rng.integers(44, 180_000)), 16_000)
        now = now if (turn + 1) % of_one_file else made.call(now, 1001, "close", file)
        if turn % 2:
            now = made.call(now, 1001, "write", given, None, 3000)
            now = 20 + made.call(now + 1, 1000, "read", given, None, 3000)
    return made.trace(folder / "t")


def fed(folder, steps: int, reads: int) -> Trace:
    """A rank whose loader hands over `steps` batches and reads a file for the first `reads` of them."""
    made, now = Made(), 0.0
    made.process(1000, 1, "rank"), made.process(1001, 1000, "loader")
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    files = [made.file(f"/d/{i:03}.jpg", size=100_000) for i in range(reads)]
    for step in range(steps):
        made.call(now, 1000, "write", asked, None, 30)
        now = made.call(now, 1001, "read", asked, None, 30)
        now = made.read_file(now, 1001, files[step]) if step < reads else now
        now = made.call(now, 1001, "write", given, None, 3000)
        now = 20 + made.call(now, 1000, "read", given, None, 3000)
    return made.trace(folder / "t")
