"""Samples that are several reads, files that a job starts from, and checkpoints of several ranks: fitted, read by the twin."""

import os
import threading

import numpy as np
import pytest

from iotwin import workload_yaml as c
from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan
from iotwin.benchmark.emulator.data.dataset import open_dataset, start_up
from iotwin.benchmark.emulator.readers.access import Buffered
from iotwin.benchmark.emulator.readers.listed import ListedReads
from iotwin.benchmark.fit import fit, predict_twin
from iotwin.benchmark.fit.coverage import Coverage, Flow
from iotwin.benchmark.fit.look import look
from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.reader import Trace
from iotwin.workload_yaml import listed_reads
from tests.benchmark.made_trace import Made

_SAMPLES, _CHUNK, _BATCH = 48, 50_000, 4


def chunks_and_labels(folder, seed: int = 1, thread: bool = False, opened: str = "by_loaders") -> Trace:
    """Two epochs over one file by a loader each: an index of 500 bytes, a chunk, a label; first a model is read, by the rank.

    With `thread`, the chunk is read by a thread of the loader's, of another id in each. The file may be `opened` by the rank.
    """
    made, rng = Made(), np.random.default_rng(seed)
    made.process(1000, 1, "rank")
    model, data = made.file("/models/start.pt", "checkpoint", 400_000), made.file("/data/all.h5", size=1_000 + _SAMPLES * 51_000)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    now = made.call(made.call(5, 1000, "openat", model), 1000, "read", model, 0, 300_000)
    for epoch in range(2):
        loader = made.process(1001 + epoch, 1000, "loader", now, now + 5_000)
        if opened != "once" or not epoch:
            now = made.call(now + 5, loader if opened == "by_loaders" else 1000, "openat", data)
        for batch in rng.permutation(_SAMPLES).reshape(-1, _BATCH):
            made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, loader, "read", asked, None, 30)
            for sample in batch.tolist():
                now = made.call(now + 1, loader, "pread64", data, 200, 500)
                now = made.call(now, loader, "pread64", data, 1_000 + sample * 51_000, _CHUNK, tid=loader + 50 * thread)
                now = made.call(now, loader, "pread64", data, 1_000 + sample * 51_000 + _CHUNK, 8)
            now = made.call(now, loader, "write", given, None, 3000)
            now = 20 + made.call(now, 1000, "read", given, None, 3000)
        now = made.write_file(now, 1000, f"/out/epoch_{epoch}.pt", 1_000_000)
    return made.trace(folder / "t")


@pytest.mark.parametrize("opened", ["by_loaders", "once", "each_pass"])
def test_a_file_is_opened_by_who_opened_it_and_as_often(tmp_path, opened):
    fitted = fit(chunks_and_labels(tmp_path, opened=opened))
    assert fitted.config.twin.reader.opened == opened and fitted.coverage["open_share"] == 1.0


def test_a_sample_of_several_reads_is_listed_and_counted(tmp_path):
    fitted = fit(chunks_and_labels(tmp_path))
    config = fitted.config
    assert fitted.evidence["kind"].startswith("structured")
    assert (config.reader.batch_size, config.train.epochs, config.train.total_training_steps) == (4, 2, 12)
    samples = [f"0:200+500 0:{1_000 + i * 51_000}+{_CHUNK} 0:{1_000 + i * 51_000 + _CHUNK}+8" for i in range(_SAMPLES)]
    assert config.twin.train_reads == samples and config.reader.sample_shuffle == "seed"
    assert (fitted.coverage["read_share"], fitted.coverage["write_share"], fitted.coverage["open_share"]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("drawn", [True, False])
def test_reads_that_go_on_where_the_last_one_ended_are_one_sample_if_samples_are_drawn(tmp_path, drawn):
    """A member of an archive is read by its buffer, 4 KiB at a time and more at once; in order, nothing tells samples apart."""
    made, rng, now = Made(), np.random.default_rng(1), 10.0
    made.process(1000, 1, "rank")
    data = made.file("/data/all.zip", size=40 * 20_000)
    asked, given = made.file("pipe:[1]", "pipe"), made.file("pipe:[2]", "pipe")
    sizes = [[4_096, 8_192, 4_096][: 2 + i % 2] for i in range(40)]
    starts = np.cumsum([0, *map(sum, sizes)]).tolist()
    for epoch in range(3):
        loader = made.process(1001 + epoch, 1000, "loader", now, now + 5_000)
        now = made.call(now + 5, loader, "openat", data)
        for batch in (rng.permutation(40) if drawn else np.arange(40)).reshape(-1, 4):
            made.call(now, 1000, "write", asked, None, 30)
            now = made.call(now + 0.2, loader, "read", asked, None, 30)
            for sample in batch.tolist():
                offset = starts[sample]
                for size in sizes[sample]:
                    now = made.call(now, loader, "read", data, offset, size)
                    offset += size
            now = made.call(now, loader, "write", given, None, 3000)
            now = 20 + made.call(now, 1000, "read", given, None, 3000)
    config = fit(made.trace(tmp_path / "t"), "structured").config
    if not drawn:
        assert config.reader.batch_size == 10
        return
    assert (config.reader.batch_size, config.train.epochs, config.train.total_training_steps) == (4, 3, 10)
    ends = [np.cumsum([start, *own]).tolist() for start, own in zip(starts, sizes, strict=False)]
    samples = [
        " ".join(f"0:{at}+{size}" for at, size in zip(end, own, strict=False)) for end, own in zip(ends, sizes, strict=True)
    ]
    assert config.twin.train_reads == samples


def images_opened_three_times(folder, sizes=(100_000, 20_000)) -> Trace:
    """Three epochs over files of which a library looks at the first 12 KiB twice, a new open each, before it reads them."""
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


def test_a_file_that_is_opened_again_and_again_is_one_sample(tmp_path):
    """Also a small one, of which the looks bring as much as the whole."""
    fitted = fit(images_opened_three_times(tmp_path))
    config = fitted.config
    assert (config.dataset.num_files_train, config.train.epochs, config.train.total_training_steps) == (24, 3, 24)
    look = "0:0+4096 0:4096+4096 0:8192+4096 0:0+0 "
    whole = " ".join(f"0:{offset}+{min(4_096, 100_000 - offset)}" for offset in range(0, 100_000, 4_096))
    assert config.twin.train_reads[0] == look * 2 + whole
    opens = [flow for flow in fitted.coverage["flows"] if flow["direction"] == "open" and flow["kind"] == "dataset"]
    assert [(flow["seen"], flow["twin"]) for flow in opens] == [(3 * 3 * 24, 3 * 3 * 24)]
    assert fitted.coverage["read_share"] == 1.0


def test_a_file_that_is_drawn_twice_in_a_row_is_two_samples(tmp_path):
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    files = [made.file(f"/d/{i:03}.bin", size=3_000) for i in range(16)]
    drawn = np.random.default_rng(1).integers(0, 16, 96)
    for file in drawn.tolist():
        now = 20 + made.read_file(now, 1000, files[file])
    assert (np.diff(drawn) == 0).any()
    fitted = fit(made.trace(tmp_path / "t"), "structured")
    assert (len(fitted.config.twin.train_reads), fitted.config.reader.batch_size) == (96, 1)
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)


def test_files_read_until_nothing_comes_are_so_read_where_their_reads_are_listed(tmp_path, monkeypatch):
    """Files of 3000 bytes drawn at random, none twice in a row, each read to its end, and once more."""
    made, rng, now = Made(), np.random.default_rng(1), 10.0
    made.process(1000, 1, "rank")
    files = [made.file(f"/d/{i:03}.bin", size=3_000) for i in range(16)]
    for file in (np.cumsum(rng.integers(1, 16, 96)) % 16).tolist():
        now = made.call(now, 1000, "openat", files[file])
        now = made.call(now, 1000, "read", files[file], 0, 3_000)
        now = made.call(now, 1000, "read", files[file], 3_000)
        made.rows[-1] = (*made.rows[-1][:9], 0, 0, 0)  # brings nothing
        now = 20 + made.call(now, 1000, "close", files[file])
    found = fit(made.trace(tmp_path / "t"), "structured").config
    listed = found.twin.train_reads or []
    numbers = [reads.partition(":")[0] for reads in listed]
    assert len(listed) == 96 and listed == [f"{number}:0+3000 {number}:3000+0" for number in numbers]
    for name in found.twin.train_files or []:
        (tmp_path / name).write_bytes(bytes(3_000))
    found.dataset.data_folder = str(tmp_path)
    asked: list[tuple[int, int]] = []
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: asked.append((offset, read(fd, views, offset))) or asked[-1][1])
    assert open_dataset(found).train.read(0) == 3_000
    assert asked == [(0, 3_000), (3_000, 0)]


def test_a_twin_that_opens_less_gives_way_to_a_recorded_one():
    reads = Flow("read", "dataset", 100, 1_000_000, 1_000_000)
    assert Coverage((reads, Flow("open", "dataset", 100, 0, 90)), ()).short_of is None
    assert "70 of 100 data" in str(Coverage((reads, Flow("open", "dataset", 100, 0, 70)), ()).short_of)


def test_what_the_job_starts_from_is_read_by_its_twin(tmp_path):
    config = fit(chunks_and_labels(tmp_path)).config
    assert (config.twin.startup_files, config.twin.startup_reads) == (["/models/start.pt"], ["0:0+300000"])
    # Nothing was logged: what came before these reads (imports) comes before them in the twin, too.
    assert (config.twin.startup_time, config.twin.init_time) == (0.005, 0.0)


def test_listed_samples_read_these_bytes_and_no_others(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    (tmp_path / "b.bin").write_bytes(bytes(range(100, 200)))
    config = c.Config(dataset=c.Dataset(data_folder=str(tmp_path), format="bin", num_files_train=2))
    config.twin.train_files, config.twin.train_reads = ["a.bin", "b.bin"], ["0:10+5 1:0+3", "", "1:90+10"]
    samples = open_dataset(config).train
    assert [samples.read(i) for i in range(len(samples))] == [8, 0, 10]
    assert bytes(samples.reader.read("2", 0, 1).content) == bytes(range(190, 200))
    config.twin.train_reads[1] = "0:0+2 0:0+0 0:0+4 1:0+0 1:0+1"
    opens: list[str] = []
    reader = open_dataset(config).train.reader
    opened = reader._open
    reader._open = lambda path: opens.append(path[-5:]) or opened(path)
    assert (reader.read("1", 0, 1).read_bytes, opens) == (7, ["a.bin", "a.bin", "b.bin"])
    config.twin.train_reads[1] = "0:98+3"
    with pytest.raises(IotwinError, match=r"a\.bin: ends after 100 bytes"):
        open_dataset(config).train.read(1)


def test_a_file_to_start_from_that_is_missing_is_named(tmp_path):
    config = c.Config(dataset=c.Dataset(data_folder=str(tmp_path)))
    config.twin.startup_files, config.twin.startup_reads = ["model.pt"], ["0:0+10"]
    with pytest.raises(IotwinError, match=r"model\.pt: cannot be read"):
        start_up(config)


@pytest.mark.parametrize(("reads", "problem"), [("0:1", "no list of reads"), ("0:-1+4", "no list"), ("2:0+4", "not among the 2")])
def test_lists_that_are_none_are_refused(tmp_path, reads, problem):
    path = tmp_path / "twin.yaml"
    path.write_text(f"twin:\n  train_files: [a, b]\n  train_reads: ['0:0+4', '{reads}']\n")
    with pytest.raises(UsageError, match=f"twin.train_reads: .*{problem}"):
        c.load(path)
    assert listed_reads.problem(["0:0+4 1:7+1", ""], 2) is None


def test_a_twin_that_would_read_otherwise_gives_way_to_a_recorded_one(tmp_path):
    """Batches that are not alike, which the twin makes alike."""
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    files = [made.file(f"/d/{i:03}.jpg", size=200_000) for i in range(40)]
    for number, file in enumerate([*files, *files]):
        now = 20 + made.read_file(now, 1000, file, 200_000 if number % 4 else 2_000)
    trace = made.trace(tmp_path / "t")
    assert fit(trace, "structured").evidence["kind"].startswith("structured")
    fitted = fit(trace)
    assert fitted.evidence["kind"].startswith("recorded, as that is nearer") and "reads of the data" in fitted.evidence["kind"]
    assert (fitted.coverage["read_share"], fitted.coverage["open_share"]) == (1.0, 1.0)
    assert fitted.coverage["flows"][0]["twin"] == 80 * 200_000


def test_mapped_data_have_a_recorded_twin(tmp_path):
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=200 * 65_536)
    for page in range(200):
        now = 20 + made.call(now, 1000, "page_fault", data, page * 65_536, 65_536)
    trace = made.trace(tmp_path / "t")
    structured = fit(trace, "structured")
    assert structured.evidence["kind"].startswith("structured") and structured.config.twin.reader.mmap
    assert predict_twin(trace).startswith("recorded, as that is nearer: the data are mapped")


@pytest.mark.parametrize(("faults", "mapped"), [(99, False), (101, True)])
def test_data_are_mapped_where_faults_bring_most_of_them(tmp_path, faults, mapped):
    made, now = Made(), 10.0
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=200 * 65_536)
    for page in range(200):
        now = 20 + made.call(now, 1000, "page_fault" if page < faults else "pread64", data, page * 65_536, 65_536)
    assert look(made.trace(tmp_path / "t")).is_mapped() == mapped


def test_a_mapped_file_is_read_to_its_end_and_no_farther(tmp_path):
    """The last page that is mapped is whole, and what the file has of it is not."""
    made, now, size = Made(), 10.0, 200 * 65_536 - 1_000
    made.process(1000, 1, "rank")
    data = made.file("/d/tokens.bin", size=size)
    for page in [*np.random.default_rng(1).integers(0, 200, 400).tolist(), 199]:
        now = 20 + made.call(now, 1000, "page_fault", data, page * 65_536, 65_536)
    fitted = fit(made.trace(tmp_path / "t"), "structured")
    reads = [int(begin) + int(size) for reads in fitted.config.twin.train_reads for begin, size in [reads[2:].split("+")]]
    assert max(reads) == size and fitted.files == [("tokens.bin", size)]


def test_what_twin_a_trace_has_is_foretold(tmp_path):
    assert predict_twin(chunks_and_labels(tmp_path)).startswith("structured: the twin accounts for 100% of what is read (")
    made, now = Made(), 0.0
    pid = made.process(1000, 1, "helper")
    for number in range(6):
        now = made.read_file(now, pid, made.file(f"/d/{number}", "other", 1000))
    assert predict_twin(made.trace(tmp_path / "other")).startswith("recorded, as no structure can be told: no data set is read")


def test_shards_of_a_checkpoint_are_written_by_their_ranks(tmp_path):
    made, rng, now = Made(), np.random.default_rng(1), 10.0
    made.process(999, 1, "helper")
    ranks = [made.process(1000 + rank, 999, "rank") for rank in (0, 1)]
    files = [made.file(f"/d/{i:03}.jpg", size=100_000) for i in range(32)]
    for epoch in range(3):
        for step, file in enumerate(rng.permutation(files).tolist()):
            now = 10 + made.read_file(now, ranks[step % 2], file)
        for rank, pid in enumerate(ranks):
            now = made.write_file(now, pid, f"/out/step_{epoch}_32/__{rank}_0.distcp", 1_000_000 + rank)
    fitted = fit(made.trace(tmp_path / "t"))
    written = {rank: [file.name for file in CheckpointPlan(fitted.config, 2).written(rank, (1, 32))] for rank in (0, 1)}
    assert written == {rank: [f"step_1_32/__{rank}_0.distcp"] for rank in (0, 1)}
    assert fitted.coverage["write_share"] == 1.0


def test_what_a_loaders_thread_read_is_read_by_a_thread_of_the_twins_loader(tmp_path):
    traces = [chunks_and_labels(tmp_path / str(thread), thread=thread) for thread in (False, True)]
    plain, beside = (fit(trace, "structured").config.twin for trace in traces)
    assert plain.train_reads and all("@" not in reads for reads in plain.train_reads)
    parts = [[read.partition("@")[2] for read in reads.split()] for reads in beside.train_reads]
    assert parts == [["", "1", ""]] * _SAMPLES
    assert [reads.replace("@1", "") for reads in beside.train_reads] == plain.train_reads


def test_threads_read_beside_the_one_that_reads_the_sample(tmp_path):
    """Two of them at the same time: each waits for the other before it reads."""
    (tmp_path / "a").write_bytes(bytes(range(100)))
    both, seen = threading.Barrier(2), []

    class Noting(Buffered):
        def read(self, offset, size_bytes):
            if offset:
                both.wait(60)
            seen.append((offset, threading.current_thread() is not threading.main_thread(), threading.get_ident()))
            return super().read(offset, size_bytes)

    reader = ListedReads(Noting, [str(tmp_path / "a")], ["0:0+4 0:10+5@1 0:20+6@2", "0:20+6@2 0:10+5@1 0:0+4"])
    assert [reader.read(str(number), 0, 1).read_bytes for number in (0, 1)] == [15, 15]
    assert {(offset, beside) for offset, beside, _ in seen} == {(0, False), (10, True), (20, True)}
    assert len({thread for _, _, thread in seen}) == 3  # the same ones for the second sample


@pytest.mark.parametrize("listed", ["0:1+2@", "0:1+2@x", "0:1+2@1234", "0:1@1+2"])
def test_threads_of_listed_reads_are_numbers(listed):
    assert listed[:60] in (listed_reads.problem([listed], 1) or "")
