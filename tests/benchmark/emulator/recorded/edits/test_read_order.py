"""Edited recordings whose samples are read in the order of files instead of shuffled."""

from itertools import pairwise

import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.dealing import RecordedPassSamples, deal
from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits, edits_of
from iotwin.benchmark.emulator.recorded.edits.streams import DealtSample
from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.recording import Op, TwinRecording
from tests.benchmark.loader_job import LoaderJob, fit_once

SEQUENTIAL = Edits(sequential=True)


def recorded(job: LoaderJob) -> tuple[Config, TwinRecording]:
    fitted = fit_once(job)
    assert fitted.recording is not None and fitted.config.twin.recorded is not None
    return fitted.config, fitted.recording


def names(made: TwinRecording, epochs: int) -> list[list[str]]:
    """Names of the files that the rank reads, by epoch."""
    reads = np.flatnonzero((made.columns["op"] == Op.READ) & (made.columns["thread"] == 0))
    read = [made.header.files[made.columns["subject"][row]] for row in reads.tolist()]
    found = [file.name for file in read if not file.written]
    return [found[at : at + len(found) // epochs] for at in range(0, len(found), len(found) // epochs)]


def test_a_shuffled_job_reads_each_file_once_an_epoch_in_their_order():
    config, before = recorded(LoaderJob(files=24, epochs=2))
    shuffled = names(edit(before, Edits(loaders=0)), 2)
    config.reader.sample_shuffle = "sorted"
    config.reader.read_threads = 0
    edits = edits_of(config, before.header, 1)
    assert edits == Edits(loaders=0, sequential=True)
    in_order = names(edit(before, edits), 2)
    assert in_order == [sorted(epoch) for epoch in shuffled] != shuffled


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_samples_are_dealt_by_file_and_offset_and_copies_come_last(ranks):
    drawn = np.random.default_rng(ranks).permutation(12).reshape(3, 4)
    pass_samples = RecordedPassSamples(
        np.arange(3),
        np.full(3, 4),
        [],
        True,
        True,
        lambda each: (str(drawn[each.batch, each.part] // 5), int(drawn[each.batch, each.part] % 5)),
    )
    edits = SEQUENTIAL._replace(ranks=ranks, samples=2)
    for rank in range(ranks):
        batches = deal(pass_samples, edits, True, 4, 2, rank, 1)
        dealt = [(each.copy, int(drawn[each.batch, each.part])) for batch in batches for each in batch.samples]
        assert dealt == [divmod(at, 12) for at in range(rank, 24, ranks)] and all(a < b for a, b in pairwise(dealt))


def test_evaluation_remains_in_its_order():
    samples = RecordedPassSamples(np.arange(1), np.array([3]), [], True, True, lambda each: ("", -each.part))
    assert deal(samples, SEQUENTIAL, False, 3, 0, 0, 0)[0].samples == [DealtSample(0, part) for part in range(3)]


def test_what_cannot_be_read_in_order_is_refused_with_its_reason():
    with pytest.raises(UsageError, match=r"reader\.sample_shuffle: loaders read on in files"):
        edit(recorded(LoaderJob(shards=True))[1], SEQUENTIAL)
    for shuffled, known, reason in ((False, True, "same order already"), (True, False, "which sample")):
        with pytest.raises(UsageError, match=reason):
            deal(RecordedPassSamples(np.arange(1), np.array([3]), [], shuffled, known), SEQUENTIAL, True, 3, 0, 0, 0)
