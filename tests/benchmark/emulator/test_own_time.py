"""What the emulator spends on its own work takes no longer in the end: the next computations are shorter by it."""

import pytest

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.journal import COLUMNS
from iotwin.benchmark.emulator.run import emulate
from iotwin.workload_yaml import select

LOOK_NS = 1000  # each look at the clock takes so long, so that the emulator's work takes time
STEP_NS = 250_000


@pytest.mark.parametrize("loader", ["native", "pytorch"])
def test_a_step_lasts_as_long_as_its_reads_and_its_computation(loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def look() -> int:
        nonlocal now_ns
        now_ns += LOOK_NS
        return now_ns

    def sleep(seconds: float) -> None:
        nonlocal now_ns
        now_ns += round(seconds * 1e9)

    monkeypatch.setattr(waits, "now_ns", look)
    monkeypatch.setattr(waits, "sleep", sleep)
    words = ["dataset.format=synthetic", "dataset.num_files_train=200", "reader.batch_size=2", "reader.read_threads=0",
             f"reader.data_loader={loader}", "train.epochs=1", f"train.computation_time={STEP_NS / 1e9}",
             "workflow.evaluation=false"]  # fmt: skip
    measured = emulate(select(["workload=default", *(f"++workload.{word}" for word in words)]).config, None)
    rows = dict(zip(COLUMNS, measured.steps.rows().T.tolist(), strict=True))
    assert len(rows["step"]) == 100
    reads_ns, wait_ns = 2 * LOOK_NS, 3 * LOOK_NS  # two samples; and one look when the loop asks for them
    assert [set(rows[name]) for name in ("compute_ns", "data_wait_ns", "read_ns")] == [{STEP_NS}, {wait_ns}, {reads_ns}]
    assert 0 <= sum(rows["step_ns"]) - 100 * (STEP_NS + wait_ns) <= 20 * LOOK_NS  # what the last step took itself
