"""Jobs that were fitted wrongly or refused falsely once: each a small made-up trace."""

import re

import numpy as np
import pytest

from iotwin.benchmark.fit import fit, predict_twin
from iotwin.benchmark.fit.look import look
from iotwin.benchmark.fit.samples.record_samples import find_other_samples
from iotwin.benchmark.fit.samples.samples import accesses_of_files
from iotwin.common.errors import IotwinError
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made


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


def test_checkpoints_larger_than_what_is_read_make_no_copy(tmp_path):
    config = fit(sampled_with_replacement(tmp_path)).config
    assert config.workflow.checkpoint and config.reader.batch_size == 1


@pytest.mark.parametrize("programs", [1, 2])
def test_writing_what_was_just_read_is_a_copy(tmp_path, programs):
    """By each of the programs of a script, too, as of cp and tar; one process with as many passes may be saving after each."""
    made, now = Made(), 0.0
    sources = [made.file(f"/d/{number}", size=1_000_000) for number in range(6)]
    for pid in range(1000, 1000 + programs):
        made.process(pid, 1, "rank")
        for number, source in enumerate(sources):
            copy = made.file(f"/c/{pid}/{number}", "checkpoint")
            for offset in range(0, 1_000_000, 250_000):
                now = made.call(now, pid, "read", source, offset, 250_000)
                now = made.call(now, pid, "write", copy, offset, 250_000)
    with pytest.raises(IotwinError, match="as a copy does"):
        fit(made.trace(tmp_path / "t"), "structured")


def test_epochs_that_save_as_much_as_they_read_are_no_copies(tmp_path):
    made, now = Made(), 10.0
    rank, files = made.process(1000, 1, "rank"), [made.file(f"/d/{number}", size=1_000_000) for number in range(6)]
    for epoch in range(20):
        for file in files:
            now = 20 + made.read_file(now, rank, file)
        now = 20 + made.write_file(now, rank, f"/out/epoch_{epoch}.pt", 6_000_000)
    assert fit(made.trace(tmp_path / "t"), "structured").config.train.epochs == 20


def test_programs_that_read_the_same_header_are_no_epochs(tmp_path):
    made, now = Made(), 0.0
    headers = [made.file(f"/src/{name}.hh", size=50_000) for name in ("common", "types")]
    made.process(1000, 1, "helper")
    for number in range(12):
        pid = made.process(1001 + number, 1000, "rank")
        now = made.read_file(made.read_file(now + 5, pid, headers[0]), pid, headers[1])
    with pytest.raises(IotwinError, match="12 epochs are as many programs"):
        fit(made.trace(tmp_path / "t"), "structured")


def test_a_failed_command_is_said_first(tmp_path, capsys):
    config = fit(sampled_with_replacement(tmp_path, exit_status=3)).config
    assert "the traced command ended with status 3" in capsys.readouterr().err.splitlines()[0]
    assert "ended with status 3" in config.twin.assumptions[0]


def test_a_late_close_does_not_split_what_is_read(tmp_path):
    """Shard by shard, each opened before the last one is closed, as a generator leaves it to the next assignment."""
    made, now, last = Made(), 0.0, None
    made.process(1000, 1, "rank")
    shards = [made.file(f"/d/shard-{number}.tar", size=1 << 18) for number in range(6)]
    for shard in shards:
        now = made.call(now, 1000, "openat", shard)
        now = made.call(now, 1000, "read", shard, 0, 1 << 16)
        if last is not None:
            now = made.call(now, 1000, "close", last)
        for offset in range(1 << 16, 1 << 18, 1 << 16):
            now = made.call(now + 3, 1000, "read", shard, offset, 1 << 16)
        last = shard
    accesses = accesses_of_files(look(made.trace(tmp_path / "t")), np.arange(6))
    assert accesses["sample"].tolist() == list(range(6))
    assert accesses["start_ns"].iloc[2] == accesses["start_ns"].iloc[1] + (accesses["start_ns"].diff().iloc[3])


@pytest.mark.parametrize("sizes", [(20_000_000, 31_000_000), (20_000_000, 20_000_000), (8_000_000, 8_000_000, 1_000_000)])
def test_files_of_unequal_length_become_whole_numbers_of_records(tmp_path, sizes):
    made, rng, now = Made(), np.random.default_rng(1), 10.0
    rank, files = made.process(1000, 1, "rank"), [made.file(f"/data/{i}.bin", size=size) for i, size in enumerate(sizes)]
    for _ in range(150):
        file = int(rng.integers(len(files)))
        size = int(rng.integers(60_000, 100_000))
        now = 20 + made.call(now, rank, "read", files[file], int(rng.integers(sizes[file] - size)), size)
    fitted = fit(made.trace(tmp_path / "t"))
    count = fitted.config.dataset.num_samples_per_file
    assert [size % count for _, size in fitted.files] == [0] * len(sizes)
    assert sum(size for _, size in fitted.files) == pytest.approx(sum(sizes), rel=0.02)


def test_a_checkpoint_closed_when_the_next_one_is_opened_is_one_of_its_own(tmp_path):
    made, now, last = Made(), 10.0, None
    rank, writer = made.process(1000, 1, "rank"), made.process(1001, 1, "helper")
    data = made.file("/data/samples.bin", size=120 * 100_000)
    made.call(now, rank, "openat", data)
    for step in range(120):
        now = 20 + made.call(now, rank, "read", data, step * 100_000, 100_000)
        if step % 40 == 20:
            if last is not None:
                made.call(now - 19, writer, "close", last)
            last = made.file(f"/out/state.{step}", "checkpoint")
            made.call(now - 18, writer, "openat", last)
            made.call(now - 17, writer, "write", last, 0, 1 << 20, 2)
    fitted = fit(made.trace(tmp_path / "t"))
    assert fitted.evidence["checkpoint"].startswith("3 checkpoints")
    assert fitted.config.checkpoint.steps_between_checkpoints == 40


def handed_over_late(folder, files: int = 24, of: int = 2) -> Trace:
    """A loader reads a batch of whole files for each order; the thread that hands a batch over comes after the next is read."""
    made, now, late = Made(), 10.0, False
    made.process(1000, 1, "rank")
    made.process(1001, 1000, "loader", 5)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    shards = [made.file(f"/d/{number:03}.bin", size=50_000 + number) for number in range(files)]
    for begin in range(0, files, of):
        made.call(now, 1000, "write", asked, None, 30)
        now = made.call(now + 0.2, 1001, "read", asked, None, 30)
        for shard in shards[begin : begin + of]:
            now = made.read_file(now + 0.5, 1001, shard)
        if late:
            now = made.call(now, 1001, "write", given, None, 3000)
        late = begin % (3 * of) == 0  # the others are handed over when they are read
        if not late:
            now = made.call(now, 1001, "write", given, None, 3000)
        now = 20 + made.call(now + 1, 1000, "read", given, None, 3000)
    if late:
        made.call(now, 1001, "write", given, None, 3000)
    return made.trace(folder / "t")


def test_a_batch_handed_over_late_is_of_the_reads_since_it_was_asked_for(tmp_path):
    fitted = fit(handed_over_late(tmp_path))
    assert fitted.evidence["kind"].startswith("structured") and fitted.evidence["dataset"].startswith("24 samples (files)")
    assert (fitted.config.reader.batch_size, fitted.coverage["read_share"]) == (2, 1.0)


def test_files_that_a_step_used_up_beside_others_are_the_twins_too(tmp_path):
    """Each step uses up a large file and a small one before it, in which no step ends; every other step reads nothing."""
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    made.process(1001, 1000, "loader", 5)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    shards = [made.file(f"/d/{number:03}.tar", size=300_000 if number % 2 else 60_000) for number in range(24)]
    for step in range(24):
        made.call(now, 1000, "write", asked, None, 30)
        now = made.call(now + 0.2, 1001, "read", asked, None, 30)
        if step % 2 == 0:
            now = made.read_file(made.read_file(now, 1001, shards[step]), 1001, shards[step + 1])
        now = made.call(now, 1001, "write", given, None, 3000)
        now = 20 + made.call(now + 1, 1000, "read", given, None, 3000)
    fitted = fit(made.trace(tmp_path / "t"))
    assert sorted(fitted.config.twin.train_files or ()) == [f"{number:03}.tar" for number in range(24)]
    assert (fitted.config.train.total_training_steps, fitted.coverage["read_share"]) == (24, 1.0)


@pytest.mark.parametrize("kept", [False, True])
def test_that_a_loader_has_no_more_to_give_is_no_batch(tmp_path, kept):
    """Two loaders, in each of three epochs new ones or kept, read a shard for every other batch, then say that they are done."""
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    shards = [made.file(f"/d/{number:02}.tar", size=60_000) for number in range(12)]
    for epoch in range(3):
        loaders = (1001, 1002) if kept else (1001 + 2 * epoch, 1002 + 2 * epoch)
        for pid in loaders if epoch == 0 or not kept else ():
            made.process(pid, 1000, "loader", now)
        for step in range(26):
            pid, batch = loaders[step % 2], step < 24
            now = made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, pid, "read", asked, None, 30)
            if batch and step % 4 < 2:
                now = made.read_file(now, pid, shards[step // 4 * 2 + step % 2])
            now = made.call(now, pid, "write", given, None, 350 if batch else 100 + step % 2)
            now = made.call(now, 1000, "poll", -1)
            now = made.call(now, 1000, "read", given, None, 350 if batch else 100 + step % 2) + (20 if batch else 0.2)
    train = fit(made.trace(tmp_path / "t"), "structured").config.train
    assert (train.epochs, train.total_training_steps) == ((1, 72) if kept else (3, 24))
    assert min(train.computation_time.values) > 0.02


def test_a_stream_without_a_log_of_its_steps_is_recorded(tmp_path):
    """Four files open at a time, read in turn a buffer at a time, one of which lasts for several steps, in two epochs."""
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    shards = [made.file(f"/d/{number}.tfrecord", size=10 << 16) for number in range(4)]
    for _ in range(2):
        for shard in shards:
            now = made.call(now, 1000, "openat", shard)
        for part in range(10):
            for shard in shards:
                now = 30 + made.call(now, 1000, "read", shard, part << 16, 1 << 16)
        for shard in shards:
            now = made.call(now, 1000, "close", shard)
    trace = made.trace(tmp_path / "t")
    assert "which hides the steps" in fit(trace).evidence["kind"]
    structured = fit(trace, "structured")
    assert structured.config.train.epochs == 2 and structured.coverage["read_share"] == 1.0


def read_by_threads(folder, of_eight: int, main_is_seen: bool = True) -> Trace:
    """A rank that reads 96 samples of one file, a step each; of eight of them its two other threads read so many, in turn."""
    made, now = Made(), 10.0
    rank, data = made.process(1000, 1, "rank"), made.file("/data/samples.bin", size=96 * 100_000)
    made.call(now, rank, "openat", data, tid=1000 if main_is_seen else 1003)
    for step in range(96):
        tid = 1001 + step % 2 if step % 8 < of_eight else rank
        now = 20 + made.call(now, rank, "read", data, step * 100_000, 100_000, tid=tid)
    return made.trace(folder / "t")


@pytest.mark.parametrize(("of_eight", "kind"), [(0, "structured"), (4, "structured"), (5, "recorded"), (8, "recorded")])
def test_data_that_threads_read_beside_the_main_one_are_recorded(tmp_path, of_eight, kind):
    trace = read_by_threads(tmp_path, of_eight)
    assert fit(trace).evidence["kind"].startswith(kind)
    structured = fit(trace, "structured")
    assert structured.coverage["read_share"] == 1.0
    said = f"threads beside the main ones read {of_eight / 8:.0%} of the data" in fit(trace).evidence["kind"]
    assert said == (kind == "recorded") == ("threads beside the main ones" in predict_twin(trace))


def test_threads_are_beside_no_main_one_that_the_recording_lacks(tmp_path):
    assert fit(read_by_threads(tmp_path, 8, main_is_seen=False)).evidence["kind"].startswith("structured")


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


def test_a_file_opened_for_a_crop_once_a_pass_is_a_sample(tmp_path):
    fitted = fit(crops(tmp_path))
    assert fitted.evidence["kind"].startswith("structured") and fitted.evidence["dataset"].startswith("30 samples (files)")
    assert (fitted.config.reader.batch_size, fitted.config.train.epochs, fitted.config.twin.reader.keep_open) == (2, 4, False)
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)
    crop = re.fullmatch(r"0:0\+44 0:(\d+)\+16000", fitted.config.twin.train_reads[0])
    assert crop and 44 <= int(crop[1]) < 180_000


@pytest.mark.parametrize(("of_one_file", "drawn"), [(4, False), (1, True)], ids=["kept open over batches", "drawn anew"])
def test_a_file_of_several_samples_is_none(tmp_path, of_one_file, drawn):
    assert find_other_samples(look(crops(tmp_path, of_one_file, drawn))).layout == "records"
