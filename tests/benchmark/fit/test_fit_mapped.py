"""Mapped rows that loaders draw at random: a page comes once in each process, so that batches have ever fewer faults."""

import numpy as np

from iotwin.benchmark.fit import fit
from iotwin.benchmark.fit.plan import plan
from iotwin.workload_yaml import listed_reads
from tests.benchmark.fit.test_fit_windows import BATCH, Training
from tests.perf.edited import scale_batch

_PAGE, _PAGES = 65_536, 60


class Rows(Training):
    """Loaders of one pass each; a row is one page of a table."""

    def __init__(self) -> None:
        super().__init__(1, False)
        self.tables = {name: self.made.file(f"/d/{name}.arrow", size=_PAGES * _PAGE) for name in ("train", "val")}
        self.faults: dict[int, set[int]] = {}  # pages that each process has
        self.made.read_file = self.fault

    def run(self, rank, name, files, now):
        self.name = name
        return super().run(rank, name, files, now)

    def fault(self, ms: float, pid: int, page: int) -> float:
        has = self.faults.setdefault(pid, set())
        if page not in has:
            ms = self.made.call(ms, pid, "page_fault", self.tables[self.name], page * _PAGE, _PAGE)
        has.add(page)
        return ms + 0.1

    def trace_of(self, folder):
        rng, now = np.random.default_rng(2), 10.0
        for epoch in range(3):
            now = self.run(self.ranks[0], "train", rng.integers(0, _PAGES, 20 * BATCH).tolist(), now)
            now = self.run(self.ranks[0], "val", [page % _PAGES for page in range(6 * BATCH)], now)
            now = self.made.write_file(now + 1, self.ranks[0], f"/out/epoch_{epoch}.pt", 3_000_000)
        return self.made.trace(folder / "t")


def test_what_each_hand_over_mapped_is_one_sample(tmp_path):
    job = Rows()
    fitted = fit(job.trace_of(tmp_path), "structured")
    config = fitted.config
    assert (config.train.epochs, config.train.total_training_steps, config.reader.batch_size) == (3, 20, 1)
    assert (config.reader.read_threads, config.reader.prefetch_size, config.reader.sample_shuffle) == (2, 4, "off")
    assert (config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals, len(config.twin.eval_reads)) == (1, 1, 6)
    assert (config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints) == (1, 1)
    assert config.twin.reader.mmap and len(config.twin.train_reads) == 20
    faulted = [{read.offset // _PAGE for read in listed_reads.parse(reads)} for reads in config.twin.train_reads]
    pages = [len(has) for has in job.faults.values()]
    middle = {tuple(pages[index : index + 2]) for index in range(0, len(pages), 4)}
    assert (sum(map(len, faulted[::2])), sum(map(len, faulted[1::2]))) in middle  # of one pass, each loader's
    whole = plan(fitted)
    scale_batch(config, 2)
    assert (plan(fitted).steps, plan(fitted).checkpoints) == (3 * 10 + 3 * 6, whole.checkpoints)
