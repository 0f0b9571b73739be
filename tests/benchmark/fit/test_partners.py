"""Samples of several files, read one after the other whenever one is drawn: an image and its mask."""

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.plan import plan
from iotwin.benchmark.fit.samples.partners import find_partners
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import listed_reads
from tests.benchmark.made_trace import Made
from tests.perf.edited import scale_batch

_SAMPLES, _EVALUATED, _BATCH = 24, 6, 4


def images_and_masks(folder, mask="mask/{}.png", shuffle=True, seed: int = 1) -> Trace:
    """Three epochs by two loaders each: images of some 100 kB, each with its mask of 9 kB; then an evaluation in order."""
    made, rng, now = Made(), np.random.default_rng(seed), 10.0
    made.process(1000, 1, "rank")
    pairs = [
        (made.file(f"/d/image/{i:03}.jpg", size=100_000 + 10 * i), made.file("/d/" + mask.format(f"{i:03}"), size=9_000 + i))
        for i in range(_SAMPLES + _EVALUATED)
    ]
    pipes = [(made.file(f"pipe:[{i}]", "pipe"), made.file(f"pipe:[{10 + i}]", "pipe")) for i in range(2)]
    for number in range(6):
        loaders = [made.process(1001 + 2 * number + i, 1000, "loader", now, now + 5_000) for i in range(2)]
        order = np.arange(_SAMPLES, _SAMPLES + _EVALUATED) if number % 2 else np.arange(_SAMPLES)
        order = rng.permutation(order) if shuffle and not number % 2 else order
        for turn, batch in enumerate(np.split(order, range(_BATCH, len(order), _BATCH))):
            loader, (asked, given) = loaders[turn % 2], pipes[turn % 2]
            made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, loader, "read", asked, None, 30)
            for sample in batch.tolist():
                for file in pairs[sample]:
                    now = 1 + made.read_file(now, loader, file)
            now = made.call(now, loader, "write", given, None, 3000)
            now = 20 + made.call(now, 1000, "read", given, None, 3000)
    return made.trace(folder / "t")


@pytest.mark.parametrize("mask", ["mask/{}.png", "image/{}_mask.jpg", "mask/other-{}.jpg"])
def test_files_that_come_together_are_one_sample(tmp_path, mask):
    fitted = fit(images_and_masks(tmp_path, mask))
    config = fitted.config
    assert fitted.evidence["kind"].startswith("structured")
    assert fitted.evidence["dataset"].startswith("30 samples of several files, 60 in all")
    assert (config.reader.batch_size, config.train.epochs, config.train.total_training_steps) == (_BATCH, 3, 6)
    assert config.reader.sample_shuffle == "seed"
    paths = [f"{config.dataset.data_folder}/{name}" for name in config.twin.train_files]
    reads = [[(paths[read.file], read.size_bytes) for read in listed_reads.parse(reads)] for reads in config.twin.train_reads]
    assert reads == [
        [
            (f"/d/image/{i:03}.jpg", 65_536),
            (f"/d/image/{i:03}.jpg", 34_464 + 10 * i),
            ("/d/" + mask.format(f"{i:03}"), 9_000 + i),
        ]
        for i in range(_SAMPLES)
    ]
    assert len(config.twin.eval_reads) == _EVALUATED
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)
    assert config.dataset.record_length_bytes == round(109_000 + 11 * (_SAMPLES - 1) / 2)


def test_a_doubled_batch_keeps_images_with_their_masks(tmp_path):
    fitted = fit(images_and_masks(tmp_path))
    whole = plan(fitted)
    scale_batch(fitted.config, 2)
    doubled = plan(fitted)
    assert (doubled.bytes_or_opens, doubled.data_reads) == (whole.bytes_or_opens, whole.data_reads)
    assert fitted.config.reader.batch_size == 2 * _BATCH and len(fitted.config.twin.train_reads) == _SAMPLES


def test_an_order_that_epochs_repeat_makes_no_samples(tmp_path):
    assert fit(images_and_masks(tmp_path, "image/{}_mask.jpg", shuffle=False), "structured").config.twin.train_reads is None


def _orders(samples: list[list[int]], epochs: int, shuffle=True, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(samples)) if shuffle else np.arange(len(samples)) for _ in range(epochs)]
    return pd.DataFrame({"pid": 7, "file_id": [file for order in orders for i in order for file in samples[i]]})


@pytest.mark.parametrize("files", [2, 3, 5])
def test_partners_are_told_whatever_their_names(files):
    samples = np.random.default_rng(3).permutation(40 * files).reshape(40, files).tolist()
    found = find_partners(_orders(samples, 3), 40 * files)
    assert found is not None and all(len({found[file] for file in sample}) == 1 for sample in samples)
    assert len(set(found.tolist())) == 40


@pytest.mark.parametrize(
    "reads",
    [
        _orders([[i] for i in range(60)], 4),  # each file by itself
        _orders([[i] for i in range(60)], 4, shuffle=False),
        _orders([[2 * i, 2 * i + 1] for i in range(30)], 1),  # one order proves nothing
        _orders([[0, 1], [2, 3], [4, 5]], 9),  # nor do three samples
    ],
)
def test_files_by_themselves_have_no_partners(reads):
    assert find_partners(reads, 60) is None


def test_an_evaluation_in_order_is_cut_as_training_is():
    training, evaluation = [[i, 100 + i] for i in range(20)], [[i, 100 + i] for i in range(20, 27)]
    reads = pd.concat(
        [part for epoch in range(3) for part in (_orders(training, 1, seed=epoch), _orders(evaluation, 1, shuffle=False))]
    )
    found = find_partners(reads, 200)
    assert found is not None and all(found[i] == found[100 + i] for i in range(27))
    assert len(set(found[:27].tolist())) == 27
