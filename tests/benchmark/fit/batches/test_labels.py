"""Labels of calls: which belong to a sample of a batch, which read ahead, and which only have their time."""

import numpy as np
import pytest

from iotwin.benchmark.fit.batches.deliveries import deliveries
from iotwin.benchmark.fit.batches.labels import Label, _parts_of_a_sample, _parts_that_stay_together, describe_labels, label_calls
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.benchmark.fit.traced_job import look
from iotwin.trace_store.reader import Trace
from tests.benchmark.fit.made_jobs import BATCH, chunks_and_labels, delivered_late, images_opened_three_times
from tests.benchmark.fit.made_training import Training
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.made_trace import Made
from tests.synthetic import Job, write_job


def labelled(trace: Trace):
    """Return the labelled calls on the data set."""
    job = look(trace)
    calls = label_calls(job).calls
    return calls[calls["file_id"].isin(job.file_ids("dataset"))]


def delivered(folder, batches: int, read_batch, loaders: int = 2, role: str = "rank") -> Trace:
    """A trainer and its loaders: `read_batch(made, now, loader, batch)` makes the reads of a batch and returns when they end.

    Each loader also registers its batches at a resource tracker, as Python's shared memory does. The tracker requests nothing.
    """
    made, now = Made(), 0.0
    made.process(1000, 1, role)
    made.process(999, 1000, "helper")
    tracker = made.file("pipe:[98]", "pipe")
    pipes = [(made.process(1001 + i, 1000, "loader"), made.file(f"pipe:[{2 * i}]", "pipe")) for i in range(loaders)]
    results = made.file("pipe:[99]", "pipe")
    for batch in range(batches):
        loader, requests = pipes[batch % loaders]
        made.call(now, 1000, "write", requests, None, 30)
        now = made.call(now + 0.1, loader, "read", requests, None, 30)
        now = read_batch(made, now + 0.01, loader, batch)
        made.call(made.call(now, loader, "write", tracker, None, 31), 999, "read", tracker, None, 31)
        now = made.call(now + 0.2, loader, "write", results, None, 3000)
        now = 20 + made.call(now, 1000, "read", results, None, 3000)
    return made.trace(folder / "t")


def test_files_that_a_rank_reads_itself_are_dealt_as_samples_of_its_batches(tmp_path):
    job = Job(loaders=0, log_phases=False, batch=3, evaluation_files=0)
    check_samples(labelled(Trace(write_job(tmp_path / "t", job))), job.files * job.epochs, job.batch)


@pytest.mark.parametrize(("loaders", "role"), [(1, "rank"), (2, "rank"), (2, "helper")])
def test_files_that_loaders_read_are_dealt_as_samples_of_their_batches(tmp_path, loaders, role):
    """The trainer of loaders that a fork server starts is no parent of theirs, and so a helper."""

    def read_batch(made, now, loader, batch):
        for number in range(3):
            now = made.read_file(now, loader, made.file(f"/d/{batch}.{number}.jpg", size=200_000))
        return now

    check_samples(labelled(delivered(tmp_path, 20, read_batch, loaders, role)), 60, 3)


def check_samples(calls, samples: int, batch: int) -> None:
    """Check that each sample is one file, that there are `samples` of them, and `batch` in each batch."""
    assert (calls["label"] == Label.DEALT).all()
    files = calls.groupby(["batch", "sample"])["file_id"].unique()
    assert files.map(len).eq(1).all() and len(files) == samples
    assert (calls.groupby("batch")["sample"].max() == batch - 1).all()


def test_what_a_spawned_loader_reads_before_its_first_request_is_no_request(tmp_path):
    """It reads the state of its program from another pipe."""
    made = Made()
    rank, loader = made.process(1000, 1, "rank"), made.process(1001, 1000, "loader")
    state, requests, results = (made.file(f"pipe:[{number}]", "pipe") for number in range(3))
    now = 0.0
    for _ in range(2):
        made.call(now, rank, "write", state, None, 300)
        now = made.call(now + 0.2, loader, "read", state, None, 300)
    for _ in range(2):  # prefetched
        made.call(now, rank, "write", requests, None, 30)
    for batch in range(12):
        now = 0.01 + made.call(now + 0.2, loader, "read", requests, None, 30)
        for number in range(3):
            now = made.read_file(now, loader, made.file(f"/d/{batch}.{number}.jpg", size=200_000))
        now = made.call(now, loader, "write", results, None, 3000)
        now = 20 + made.call(now, rank, "read", results, None, 3000)
        made.call(now, rank, "write", requests, None, 30)
    delivered = deliveries(look(made.trace(tmp_path / "t")))
    assert delivered.requests["size_bytes"].tolist() == [30] * len(delivered.batches) == [30] * 12
    check_samples(labelled(Trace(tmp_path / "t")), 36, 3)


def test_a_sample_of_several_ranges_is_one_and_a_loaders_set_up_is_of_none(tmp_path):
    calls = labelled(chunks_and_labels(tmp_path))
    reads = calls[(calls["op"] == "pread64") & (calls["offset"] >= 1_000)]
    drawn = (reads["offset"].to_numpy(np.int64) - 1_000) // 51_000
    assert (reads["label"] == Label.DEALT).all()
    assert reads.assign(drawn=drawn).groupby(["batch", "sample"])["drawn"].nunique().eq(1).all()
    assert reads.groupby("batch")["sample"].max().eq(BATCH - 1).all()
    assert (calls.loc[calls["op"] == "openat", "sample"] <= 0).all()


def test_parts_of_equal_sizes_are_as_many_samples_as_a_request_can_name(tmp_path):
    """Patches of four chunk files each: a request of 30 bytes does not name 32 samples."""

    def read_batch(made, now, loader, batch):
        for number in range(32):
            now = made.read_file(now, loader, made.file(f"/d/{batch}.{number}", size=4096))
        return now

    calls = labelled(delivered(tmp_path, 12, read_batch))
    assert calls.groupby("batch")["sample"].max().eq(3).all()  # a request of 30 bytes names at most six


def test_shards_that_batches_read_on_are_streamed(tmp_path):
    at = {}

    def read_batch(made, now, loader, batch):
        shard = at.setdefault(loader, [made.file(f"/d/{loader}.tar", size=10 << 20), 0])
        for _ in range(3):
            now, shard[1] = made.call(now, loader, "read", shard[0], shard[1], 65536), shard[1] + 65536
        return now

    calls = labelled(delivered(tmp_path, 24, read_batch))
    assert (calls["label"] == Label.STREAMED).all() and calls["batch"].nunique() == 24


def test_reads_that_last_for_several_batches_are_streamed(tmp_path):
    def read_batch(made, now, loader, batch):
        table = made.file("/d/table.parquet", size=24 << 20) if not batch else len(made.files) - 1
        drawn = batch * 7 % 24
        return made.call(now, loader, "pread64", table, drawn << 20, 1 << 20) if batch % 6 < 2 else now

    calls = labelled(delivered(tmp_path, 48, read_batch))
    assert len(calls) == 16 and (calls["label"] == Label.STREAMED).all()


@pytest.mark.parametrize(("percent", "label"), [(70, Label.STREAMED), (95, Label.DEALT)])
def test_a_loader_reads_ahead_if_it_reads_for_fewer_than_nine_tenths_of_its_batches(tmp_path, percent, label):
    def read_batch(made, now, loader, batch):
        file = made.file("/d/all.h5", size=200 << 20) if not batch else len(made.files) - 1
        reads = batch in (0, 199) or batch * 37 % 100 < percent
        return made.call(now, loader, "pread64", file, batch * 37 % 200 << 20, 1 << 19) if reads else now

    assert (labelled(delivered(tmp_path, 200, read_batch, loaders=1))["label"] == label).all()


@pytest.mark.parametrize(("percent", "label"), [(40, Label.DEALT), (60, Label.STREAMED)])
def test_a_file_is_streamed_if_most_batches_read_on(tmp_path, percent, label):
    at = [0]

    def read_batch(made, now, loader, batch):
        file = made.file("/d/all.bin", size=200 << 20) if not batch else len(made.files) - 1
        at[0] += 4096 if batch * 37 % 100 < percent else 1 << 16
        return made.call(now, loader, "pread64", file, at[0], 4096)

    assert (labelled(delivered(tmp_path, 100, read_batch, loaders=1))["label"] == label).all()


@pytest.mark.parametrize(("percent", "known"), [(40, False), (60, True)])
def test_samples_are_known_if_half_of_the_batches_have_equally_many_parts(tmp_path, percent, known):
    def read_batch(made, now, loader, batch):
        for number in range(4 if batch * 37 % 100 < percent else 5 + batch % 7):
            now = made.read_file(now, loader, made.file(f"/d/{batch}.{number}", size=4096))
        return now

    assert (labelled(delivered(tmp_path, 100, read_batch))["sample"].max() == 3) == known


@pytest.mark.parametrize(("left", "parts"), [(0.2, 2), (0.35, 1)])
def test_sizes_repeat_if_little_of_their_variance_is_left_within_the_parts_of_a_position(left, parts):
    position = np.tile([1.0, -1.0], (50, 4)) * np.sqrt(1 - left)
    sizes = position + np.tile(np.repeat([1.0, -1.0], 25)[:, None], (1, 8)) * np.sqrt(left)
    assert _parts_of_a_sample(sizes, most=8) == parts


def job_without_loaders(folder, op: str, of_thread: bool, faults: int = 0) -> Trace:
    """A rank reads a page in each of 40 steps: first `faults` page faults, then calls `op` of its main thread or another."""
    made, rng = Made(), np.random.default_rng(1)
    rank, data = made.process(1000, 1, "rank"), made.file("/d/tokens.bin", size=40 << 20)
    for step in range(40):
        made_by = "page_fault" if step < faults else op
        made.call(100 * step, rank, made_by, data, int(rng.integers(10_000)) * 4096, 4096, tid=rank + of_thread)
    return made.trace(folder / "t")


@pytest.mark.parametrize(("faults", "label"), [(16, Label.DEALT), (24, Label.TIMED)])
def test_most_reads_decide_whether_data_are_mapped(tmp_path, faults, label):
    assert (labelled(job_without_loaders(tmp_path, "pread64", False, faults))["label"] == label).all()


@pytest.mark.parametrize(
    ("op", "of_thread", "label"),
    [
        ("pread64", False, Label.DEALT),
        ("pread64", True, Label.STREAMED),  # as tf.data's threads read ahead
        ("page_fault", False, Label.TIMED),  # the page cache decides how many there are
    ],
)
def test_what_a_rank_reads_by_itself(tmp_path, op, of_thread, label):
    calls = labelled(job_without_loaders(tmp_path, op, of_thread))
    assert len(calls) == 40 and (calls["label"] == label).all()


def test_what_a_rank_reads_concurrently_with_its_loaders_and_before_them_is_timed(tmp_path):
    def read_batch(made, now, loader, batch):
        image = made.file(f"/d/{batch}.jpg", size=4096)
        made.call(now, 1000, "pread64", image, 0, 128)
        return made.read_file(now, loader, image)

    calls = labelled(delivered(tmp_path, 12, read_batch))
    assert (calls["label"] == np.where(calls["pid"] == 1000, Label.TIMED, Label.DEALT)).all()
    assert (calls.loc[calls["pid"] == 1000, ["batch", "sample"]] == -1).all(axis=None)


def test_samples_are_unknown_if_batches_have_any_number_of_parts(tmp_path):
    def read_batch(made, now, loader, batch):
        for number in range(1 + batch % 5):
            now = made.read_file(now, loader, made.file(f"/d/{batch}.{number}", size=4096))
        return now

    calls = labelled(delivered(tmp_path, 20, read_batch))
    assert (calls["label"] == Label.DEALT).all() and (calls["sample"] == -1).all()


def test_fit_reports_the_labels_of_each_kind_of_file(tmp_path):
    labels = fit(chunks_and_labels(tmp_path)).evidence["labels"]
    assert labels == "data (4.62 MiB): 100% dealt; checkpoints (2.19 MiB): 100% timed; samples in a batch: 4"


def test_a_job_that_reads_no_data_has_no_dealt_calls(tmp_path):
    made = Made()
    made.process(1000, 1, "rank")
    made.write_file(0, 1000, "/out/state.pt", 1_000_000)
    job = look(made.trace(tmp_path / "t"))
    assert describe_labels(job, label_calls(job)) == "checkpoints (977 KiB): 100% timed"


@pytest.mark.parametrize(("stay", "parts"), [(True, 2), (False, 1)])
def test_parts_that_follow_one_another_in_every_order_are_one_sample(stay, parts):
    """Three epochs of images and their masks, four samples a batch; or of as many files in any order."""
    rng = np.random.default_rng(1)
    samples = np.arange(48).reshape(24, 2) if stay else np.arange(48).reshape(48, 1)
    places = np.concatenate([rng.permutation(samples).reshape(-1, 8) for _ in range(3)])
    assert _parts_that_stay_together(places) == parts


def test_parts_that_no_epoch_reads_again_or_in_another_order_may_be_samples():
    places = np.arange(48).reshape(-1, 8)
    assert _parts_that_stay_together(places) == 1
    assert _parts_that_stay_together(np.concatenate([places] * 3)) == 1


@pytest.mark.parametrize("masks", [9_000, 90_000])
def test_a_sample_is_an_image_and_its_mask_whatever_their_sizes(tmp_path, masks):
    job = LoaderJob(mask_bytes=masks, file_bytes=100_000, epochs=3)
    calls = labelled(job.trace(tmp_path / "t"))
    assert (calls.groupby("batch")["sample"].max() == job.batch - 1).all()
    assert (calls.groupby(["batch", "sample"])["file_id"].nunique() == 2).all()


def test_a_batch_that_is_delivered_late_is_of_the_files_read_since_its_request(tmp_path):
    calls = labelled(delivered_late(tmp_path))
    assert (calls.groupby("batch")["file_id"].nunique() == 2).all() and calls["batch"].nunique() == 12


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_answer_that_an_epoch_begins_is_no_batch_that_a_loader_has_read_ahead(tmp_path, ranks):
    """Loaders that live on get such a message before each epoch; an evaluation has one or two batches for each of them."""
    calls = labelled(Training(ranks, persistent=True).trace(tmp_path))
    assert (calls["label"] == Label.DEALT).all()
    assert (calls.groupby("batch")["sample"].max() == 3).all()


def test_a_file_that_is_opened_three_times_in_a_row_is_one_sample(tmp_path):
    calls = labelled(images_opened_three_times(tmp_path))
    assert calls["batch"].nunique() == 3 * 24 and (calls["sample"] == 0).all()


def test_a_rank_that_reads_pairs_itself_takes_bursts_of_pairs_as_batches(tmp_path):
    """Two pairs a batch with 5 ms between them, 60 ms between batches, and 1 ms or less within a pair."""
    made, rng, now = Made(), np.random.default_rng(1), 0.0
    made.process(1000, 1, "rank")
    pairs = [[made.file(f"/d/{i}_{half}.npy", size=50_000) for half in "xy"] for i in range(24)]
    for step, pair in enumerate(number for _ in range(3) for number in rng.permutation(24)):
        for file in pairs[pair]:
            now = made.read_file(now + 0.1, 1000, file)
        now += 60 if step % 2 else 5
    calls = labelled(made.trace(tmp_path / "t"))
    assert calls["batch"].nunique() == 36
    assert (calls.groupby(["batch", "sample"])["file_id"].nunique() == 2).all() and set(calls["sample"]) == {0, 1}


def test_time_spent_on_checkpoints_is_no_pause_between_batches(tmp_path):
    """One file a step; after each ten of them a checkpoint takes ten times as long as a step."""
    made, now = Made(), 0.0
    made.process(1000, 1, "rank")
    files = [made.file(f"/d/{i}.bin", size=5000) for i in range(20)]
    for step in range(80):
        now = made.read_file(now + 5, 1000, files[step % 20])
        if step % 10 == 9:
            saved = made.file(f"/out/{step}.pt", "checkpoint")
            now = made.call(made.call(now, 1000, "openat", saved), 1000, "write", saved, 0, 1000, 50)
    assert labelled(made.trace(tmp_path / "t"))["batch"].nunique() == 80


def test_batches_of_training_and_of_an_evaluation_have_their_own_number_of_samples(tmp_path):
    """As many batches of either: four samples, and one; a sample is a pair of files."""
    rng = np.random.default_rng(1)
    drawn = {}

    def read_batch(made, now, loader, batch):
        pairs = drawn.setdefault("pairs", [[made.file(f"/d/{i}_{half}.npy", size=50_000) for half in "xy"] for i in range(20)])
        if batch % 8 == 0:
            drawn["order"] = [*rng.permutation(16).reshape(4, 4).tolist(), [16], [17], [18], [19]]
        for pair in drawn["order"][batch % 8]:
            for file in pairs[pair]:
                now = made.read_file(now, loader, file)
        return now

    samples = labelled(delivered(tmp_path, 32, read_batch)).groupby("batch")["sample"].max() + 1
    assert samples.value_counts().to_dict() == {4: 16, 1: 16}
