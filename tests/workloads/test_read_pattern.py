"""How each workload reads its data set, by the calls that eBPF sees, against the published jobs' patterns."""

import importlib.util
import sys
from pathlib import Path

import pytest

from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout
from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, run_iotwin

pytestmark = pytest.mark.root


def traced(directory, workload, *flags, **options):
    """The calls of `python -m workloads.WORKLOAD` on its data set, in order, with the files' names."""
    words = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    job = [
        sys.executable,
        "-m",
        f"iotwin.workloads.{workload}",
        "--data",
        directory / "data",
        "--output",
        directory / "out",
        *words,
        *flags,
    ]
    done = run_iotwin("trace", "-o", directory / "trace", "--backend", "libbpf", "--", *job, *words, *flags, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    trace = Trace(directory / "trace")
    paths = trace.files().set_index("file_id")["path"]
    names = paths[paths.str.startswith(f"{directory / 'data'}/")].map(lambda path: Path(path).name)
    calls = trace.events_frame(columns=["op", "pid", "tid", "file_id", "offset", "requested", "result"])
    calls = calls[calls["file_id"].isin(names.index)]
    calls = calls[calls["op"].isin(["read", "pread64"])]
    return calls.assign(file=calls["file_id"].map(names))


@pytest.mark.parametrize("shuffle", [False, True])
def test_dlrm_reads_a_batch_by_one_call_of_the_one_process(tmp_path, shuffle):
    generate(DlrmLayout(), tmp_path / "data", samples=20_500, seed=3, workers=1)
    options = {"batch_size": 1000, "steps": 20, "variant": "sleep", "sleep": 0, "eval_every": 0}
    calls = traced(tmp_path, "dlrm", *(["--shuffle"] if shuffle else []), **options)
    assert set(calls["file"]) == {DlrmLayout.TRAIN_NAME} and calls["pid"].nunique() == calls["tid"].nunique() == 1
    assert set(calls["requested"]) == set(calls["result"]) == {160_000}
    batches = (calls["offset"] // 160_000).tolist()
    assert sorted(batches) == list(range(20))  # each once in a pass; the 500 samples that fill no batch never
    assert (batches == sorted(batches)) is not shuffle
    assert (calls["offset"] % 160_000 == 0).all()


@pytest.mark.torch
def test_dlrm_asleep_reads_what_the_original_reads_in_the_same_order(tmp_path):
    small = {"embedding_size": 4, "most_categories": 100, "bottom": 8, "top": 8, "threads": 1}
    options = {"batch_size": 1000, "steps": 30, "eval_every": 0, **small}  # one pass and a half
    reads = []
    for variant in ({}, {"variant": "sleep", "sleep": 0}):
        directory = tmp_path / variant.get("variant", "original")
        generate(DlrmLayout(), directory / "data", samples=20_500, seed=3, workers=1)
        calls = traced(directory, "dlrm", "--shuffle", **options, **variant)
        reads.append(calls[["file", "offset", "requested", "result"]].to_numpy().tolist())
    assert reads[0] == reads[1] and len(reads[0]) == 30


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_bert_reads_eight_shards_at_once_by_threads(tmp_path):
    generate(BertLayout(), tmp_path / "data", samples=4000, seed=3, workers=1)
    # Most of a pass: on a busy machine one thread alone may read the first dozen shards before the others begin.
    options = {"batch_size": 6, "steps": 600, "variant": "sleep", "sleep": 0, "eval_steps": 0}
    calls = traced(tmp_path, "bert", **options)
    assert calls["pid"].nunique() == 1 and calls["tid"].nunique() >= 8
    files = calls["file"].drop_duplicates().tolist()
    assert files != sorted(files)  # shuffled
    for _, own in calls.groupby("file"):
        first = own.iloc[0]
        assert first["offset"] == 0 and first["requested"] == 262_144
        # Consecutive: every read begins where the one before ended.
        ends = (own["offset"] + own["result"]).tolist()
        assert own["offset"].tolist()[1:] == ends[:-1] or own["offset"].tolist().count(0) > 1  # or a second pass
    assert not any(name.startswith("eval") for name in files)


@pytest.mark.torch
def test_unet3d_reads_whole_files_in_the_sampler_s_order(tmp_path):
    from torch.utils.data.distributed import DistributedSampler

    generate(Unet3dLayout(scale=0.1), tmp_path / "data", samples=20, seed=3, workers=1)
    options = {"epochs": 2, "batch_size": 2, "workers": 1, "eval_every": 0, "base_channels": 4, "depth": 2, "crop": 16, "seed": 1,
               "variant": "sleep", "sleep": 0}  # fmt: skip
    calls = traced(tmp_path, "unet3d", **options)
    training = Unet3dLayout.split(Unet3dLayout.discover(tmp_path / "data"))[0]
    sampler = DistributedSampler(training, 1, 0, shuffle=True, seed=1, drop_last=True)
    expected = []
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        expected += [name for index in sampler for name in (training[index].image.name, training[index].mask.name)]
    turns = calls["file"][calls["file"] != calls["file"].shift()].tolist()
    assert turns == expected  # the image, then its mask, sample by sample
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "data").iterdir()}
    for (_, file), own in calls.groupby(["pid", "file"]):
        # numpy reads 4 KiB of header, then the rest: nothing beside the header is read twice.
        assert own["requested"].iloc[0] == 4096
        assert (own["offset"] + own["result"]).max() == sizes[file]
        assert own["result"].sum() <= sizes[file] + 8192
