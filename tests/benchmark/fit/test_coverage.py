"""What a structured twin accounts for is said, and one that contradicts its job or accounts for less than half is refused."""

from dataclasses import replace

import pandas as pd
import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.coverage import _trains, account, check_coverage, describe_coverage
from iotwin.benchmark.fit.look import look
from iotwin.common.errors import IotwinError
from iotwin.trace_store.reader import Trace
from tests.benchmark.made_trace import Made
from tests.synthetic import Job, write_job


@pytest.fixture(scope="module", params=[True, False], ids=["by numpy", "once"])
def trace(tmp_path_factory, request) -> Trace:
    return Trace(write_job(tmp_path_factory.mktemp("job") / "t", Job(evaluation_files=0, by_numpy=request.param)))


def test_a_job_that_is_understood_is_accounted_for_to_the_byte(trace):
    fitted = fit(trace)
    coverage = account(look(trace), fitted)
    assert (coverage.read_share, coverage.write_share, coverage.open_share, coverage.reasons) == (1.0, 1.0, 1.0, ())
    assert describe_coverage(fitted.coverage).startswith("the twin accounts for 100% of what is read (")


@pytest.mark.parametrize(
    ("twin", "seen", "said"),
    [
        (57 << 20, 57 << 20, "57 MiB of 57 MiB"),
        (1 << 20, 57 << 20, "1 MiB of 57 MiB"),
        ((57 << 20) + 1, 57 << 20, "57 MiB of 57 MiB"),
        (57 << 30, 57 << 20, "57 GiB instead of 57 MiB"),
        (4096, 0, "4 KiB instead of 0 B"),
    ],
)
def test_what_the_twin_has_too_much_is_no_share(twin, seen, said):
    flow = {"direction": "write", "kind": "checkpoint", "calls": 1, "seen": seen, "twin": twin}
    document = {"write_share": 0.01, "flows": [flow]}
    assert describe_coverage(document) == f"the twin accounts for 1% of what is written ({said} checkpoints)"


@pytest.mark.parametrize(("epochs", "share"), [(1, 1 / 3), (6, 1 / 2), (9, 1 / 3)])
def test_too_little_and_too_much_count_alike(trace, epochs, share):
    fitted = fit(trace)
    fitted.config.train.epochs = epochs
    coverage = account(look(trace), fitted)
    assert coverage.read_share == pytest.approx(share)
    assert coverage.write_share == pytest.approx(share)


def test_less_than_half_is_refused_with_the_amounts(trace):
    fitted = fit(trace)
    fitted.config.train.epochs = 1
    with pytest.raises(IotwinError, match=r"33% of what is read \(.* of .* data"):
        check_coverage(look(trace), fitted)


@pytest.mark.parametrize(
    ("loaders", "turns", "saves", "trains"),
    [
        (True, 1, False, True),
        (False, 2, True, True),
        (False, 1, True, False),
        (False, 2, False, False),
    ],
)
def test_only_who_trains_is_told_to_log_epochs(tmp_path, loaders, turns, saves, trains):
    """Loaders hand over batches, or a process reads what it read before and saves."""
    made, now = Made(), 100.0
    rank, data = made.process(1000, 1, "rank"), made.file("/d/0.bin", size=1 << 20)
    if loaders:
        reader, given = made.process(1001, rank, "loader"), made.file("pipe:[1]", "pipe")
        made.call(1, reader, "write", given, None, 3000), made.call(2, rank, "read", given, None, 3000)
    for _ in range(turns):
        now = made.read_file(now, rank, data)
    if saves:
        made.write_file(now, rank, "/out/model.pt", 1 << 20)
    assert _trains(look(made.trace(tmp_path / "t"))) == trains


def test_a_checkpoint_beyond_the_last_step_is_a_contradiction(trace):
    fitted = fit(trace)
    fitted.config.checkpoint.checkpoint_after_epoch = 4
    reasons = account(look(trace), fitted).reasons
    assert reasons == ("checkpoints were written, but the twin would end before its first one",)


def test_a_batch_size_that_few_batches_have_is_a_contradiction(trace):
    fitted = fit(trace)
    fitted.confidence["reader.batch_size"] |= {"agree": 0.07, "observations": 264}
    assert any("7% of 264 batches" in reason for reason in account(look(trace), fitted).reasons)


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


def test_hand_overs_without_a_read_are_steps_all_the_same(tmp_path):
    """As of shards whose records last for several batches."""
    fitted = fit(fed(tmp_path, 60, 20))
    train, reader = fitted.config.train, fitted.config.reader
    assert (train.epochs * train.total_training_steps, reader.batch_size) == (60, 1)
    assert fitted.coverage["read_share"] == pytest.approx(1, abs=0.02)
    # Each read as the job made it: a size of all of them would cut the longer ones.
    assert reader.transfer_size is None
    listed = [reads.replace("+", " ").split()[1::2] for reads in fitted.config.twin.train_reads if reads]
    assert listed == [["65536", "34464"]] * 20
    assert (fitted.config.twin.reader.keep_open, fitted.config.twin.reader.most_open) == (True, 1)  # each closed when it was read


def test_fewer_steps_than_hand_overs_are_a_contradiction(tmp_path):
    trace = fed(tmp_path, 20, 20)
    fitted = fit(trace)
    assert fitted.coverage["read_share"] == 1.0
    fitted.config.reader.batch_size = 4
    reasons = account(look(trace), fitted).reasons
    assert reasons == ("20 batches were handed over by loaders, but the twin would make 5 steps",)


def test_mapped_data_that_was_not_traced_says_what_to_add(tmp_path):
    made = Made()
    made.process(1000, 1, "rank")
    data = made.file("/d/train.bin", size=1 << 20)
    made.call(0, 1000, "openat", data), made.call(1, 1000, "mmap", data, 0, 1 << 20)
    with pytest.raises(IotwinError, match="--detail data,mmap"):
        fit(made.trace(tmp_path / "t"), "structured")


def test_a_recorded_twin_says_which_data_it_does_not_see(tmp_path, capsys):
    """An index of it may be read by calls, so that all that is seen is accounted for."""
    made = Made()
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=1 << 20)
    made.call(0, 1000, "openat", data), made.call(1, 1000, "mmap", data, 0, 1 << 20), made.call(2, 1000, "read", data, 0, 4096)
    (trace := made.trace(tmp_path / "t")).manifest.counts = {"mmap": 1}
    fit(trace, "recorded")
    said = capsys.readouterr().err
    assert "1 MiB of the data set (1 file) are mapped into memory" in said and "--detail data,mmap" in said


@pytest.mark.parametrize(("mapped_bytes", "said"), [(5 << 20, False), (60 << 20, True)])
def test_a_little_mapped_data_beside_much_that_is_read_is_no_contradiction(trace, mapped_bytes, said):
    """Of a job that reads 288 MiB."""
    job, fitted = look(trace), fit(trace)
    file = job.files.iloc[[0]].assign(file_id=len(job.files), path="/d/index.bin", kind="dataset", size_bytes=mapped_bytes)
    mapped = job.calls.iloc[[0]].assign(op="mmap", file_id=len(job.files), result=1)
    seen = replace(job, files=pd.concat([job.files, file]), calls=pd.concat([job.calls, mapped]))
    reasons = account(seen, fitted).reasons
    assert any("1 data files are mapped" in reason for reason in reasons) == said
