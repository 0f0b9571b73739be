"""Twins of parameters on the virtual clock: the same calls in the same order per thread as in real time, without the waiting."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from iotwin import workload_yaml as workload
from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.loaders.base import Fetcher
from iotwin.benchmark.emulator.threads import TaskThreads
from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import FormatLayout
from iotwin.loops.emulation import EmulationOptions, run_workload
from iotwin.workload_yaml import Config, Dataset
from tests.benchmark.strace import needs_strace
from tests.benchmark.thread_calls import calls_by_thread
from tests.conftest import ROOT, run_iotwin

_SECONDS, _STEPS = 20.0, 8  # computing of a step; steps of both epochs


def _loaders(config: Config) -> None:
    """Two loader processes that each spend a second on a sample."""
    config.reader.preprocess_time = 0.3


def _main(config: Config) -> None:
    config.reader.read_threads = 0


def _threads(config: Config) -> None:
    config.reader.multiprocessing_context = "threads"


def _background(config: Config) -> None:
    """Checkpoints within epochs, in the background, that take longer than two steps."""
    section = config.twin.checkpoint
    section.asynchronous, section.snapshot_time, section.lead_time, section.persist_threads = (
        True,
        0.5,
        2.5 * _SECONDS,
        2,
    )
    config.checkpoint.steps_between_checkpoints = 2


def _stream(config: Config) -> None:
    """Threads that stream records ahead of the steps."""
    folder = Path(config.output.folder).parent / "records"
    if not folder.exists():
        generate(FormatLayout(format="tfrecord", samples_per_file=4, record_bytes=20_000), folder, samples=8, workers=1)
    config.twin.layout = None
    config.dataset = Dataset(data_folder=str(folder), format="tfrecord", num_samples_per_file=4, interleave=True)
    config.reader.read_threads = 2
    config.workflow.evaluation = False


_VARIANTS = [_loaders, _main, _threads, _background, _stream]


def _prepared(twin: Config, change: Callable[[Config], None]) -> Config:
    twin.train.computation_time = _SECONDS
    change(twin)
    return twin


def _run(config: Config, clock: str, ranks: int = 1) -> dict[str, Any]:
    config = msgspec.structs.replace(config, twin=msgspec.structs.replace(config.twin, clock=clock))
    done = run_workload(config, EmulationOptions(ranks=ranks, one_of_several=True))
    assert done is not None
    return done


@pytest.mark.parametrize("change", _VARIANTS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_waiting_is_computed(twin: Config, change: Callable[[Config], None], ranks: int) -> None:
    done = _run(_prepared(twin, change), "virtual", ranks)
    own, clock = done["iotwin"], done["iotwin"]["clock"]
    computed_s = own["steps"] * _SECONDS
    assert own["steps"] in (_STEPS, _STEPS // ranks)
    assert clock["kind"] == "virtual" and clock["virtual_s"] == own["elapsed_s"] >= computed_s > 2 * clock["real_s"]
    assert sum(own["training"]["epoch_s"]) >= computed_s
    # No step is shorter than its computing, which a clock that jumps too early would make it; waits for data are of the loaders.
    steps = pq.read_table(Path(done["output"]) / "metrics.parquet").to_pydict()
    train = [step_s for step_s, phase in zip(steps["step_ns"], steps["phase"], strict=True) if phase == "train"]
    assert min(train) > 0.9 * _SECONDS * 1e9
    assert pq.read_table(Path(done["output"]) / "clock.parquet").num_rows == clock["jumps"] > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_real_time_of_a_run_excludes_what_was_skipped_before_it(twin: Config, ranks: int) -> None:
    """Initialisation is no part of the run, but most of what the clock skips here."""
    twin.twin.startup_time, twin.twin.init_time, twin.train.computation_time = 3000.0, 2000.0, _SECONDS
    twin.train.epochs = 1
    done = _run(twin, "virtual", ranks)
    clock = done["iotwin"]["clock"]
    jumps = pq.read_table(Path(done["output"]) / "clock.parquet")
    assert jumps["skipped_ns"][-1].as_py() > 2000e9
    assert 0 < clock["real_s"] < clock["virtual_s"] == done["iotwin"]["elapsed_s"] < 2000


def test_threads_and_ranks_wait_for_one_another_as_in_real_time(twin: Config) -> None:
    """Formulas: with a step shorter than a batch's loading, the loaders set the pace, and the snapshot's wait stalls training."""
    # 2 loaders, 2 samples a batch: a batch each 100 s
    twin.train.computation_time, twin.reader.preprocess_time = 50.0, 100.0
    twin.workflow.evaluation, twin.workflow.checkpoint = False, False
    epochs = _run(twin, "virtual")["iotwin"]["training"]["epoch_s"]
    # Batches arrive at 200, 200, 400 and 400 s; the last step begins after the one before it.
    assert epochs == pytest.approx([500.0, 500.0], abs=40)


def test_a_background_checkpoint_delays_only_what_waits_for_it(twin: Config) -> None:
    twin.train.computation_time, twin.train.epochs, twin.workflow.evaluation = 100.0, 1, False
    section = twin.checkpoint
    twin.twin.checkpoint.asynchronous, twin.twin.checkpoint.snapshot_time = True, 300.0
    twin.twin.checkpoint.snapshot = "host"
    section.steps_between_checkpoints = 2
    (epoch_s,) = _run(twin, "virtual")["iotwin"]["training"]["epoch_s"]
    assert epoch_s == pytest.approx(100 + 100 + 300 + 100, abs=40)  # the third step waits for the snapshot, not the fourth


@needs_strace
@pytest.mark.parametrize(("change", "ranks"), [*((each, 1) for each in _VARIANTS), (_loaders, 2)])
def test_each_thread_makes_the_same_calls_in_the_same_order(
    twin: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Config], None], ranks: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    change(twin)
    twin.train.computation_time = 0.02
    if change is _background:  # who of two threads writes a file, and when training finds it written, is a race of real time
        twin.twin.checkpoint.persist_threads, twin.twin.checkpoint.lead_time = 1, 0.0
    if change is _loaders:
        twin.reader.preprocess_time = 0.01
    path = tmp_path / "twin.yaml"
    workload.dump(twin, path)
    data = Path(twin.dataset.data_folder)
    real, virtual = (
        calls_by_thread(path, clock, ranks, data, tmp_path / "checkpoints", tmp_path) for clock in ("real", "virtual")
    )
    assert real == virtual and len(real) > (0 if change is _main else 1)


def test_a_killed_loader_ends_the_run(twin: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = Fetcher.fetch

    def killed(self: Fetcher, epoch: int, batch: Any) -> Any:
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return fetched(self, epoch, batch)

    monkeypatch.setattr(Fetcher, "fetch", killed)
    with pytest.raises(IotwinError, match="was killed by SIGKILL in epoch 2"):
        _run(twin, "virtual")
    assert waits.virtual_clock() is None


def test_a_time_limit_counts_virtual_time(twin: Config) -> None:
    twin.train.computation_time, twin.train.epochs = 60.0, 50
    done = run_workload(
        msgspec.structs.replace(twin, twin=msgspec.structs.replace(twin.twin, clock="virtual")), EmulationOptions(limit_s=600)
    )
    assert done is not None and done["iotwin"]["stopped_early"] and done["iotwin"]["steps"] in (10, 11)


def test_busy_waiting_is_refused(tmp_path: Path) -> None:
    result = run_iotwin("emulate", "workload=default", "++twin.clock=virtual", "++twin.busy_wait=true")
    assert result.returncode == 2 and "twin.clock" in result.stderr and len(result.stderr.splitlines()) == 1


def test_slots_of_ended_threads_are_used_again() -> None:
    def slept(seconds: float) -> float:
        waits.sleep(seconds)
        return seconds

    with waits.on_virtual_clock(1) as clock:
        for _ in range(50):
            pool = TaskThreads(3, "test")
            assert pool.map(slept, [10_000.0, 20_000.0, 30_000.0, 5_000.0]) == [10_000, 20_000, 30_000, 5_000]
        assert 50 * 29_990 <= clock.figures().skipped_s < 50 * 30_100
        assert clock._cells[1] < 10  # slots in use


def test_a_lock_is_held_through_a_sleep() -> None:
    with waits.on_virtual_clock(1) as clock:
        turn, held = waits.Turn(), []

        def hold(number: int) -> None:
            with turn:
                held.append(number)
                waits.sleep(1000)
                assert held[-1] == number

        TaskThreads(3, "test").map(hold, range(3))
        assert 2999 <= clock.figures().skipped_s < 3001


def test_a_thread_unknown_to_the_clock_waits_in_real_time() -> None:
    with waits.on_virtual_clock(1) as clock:
        thread = threading.Thread(target=waits.sleep, args=(0.01,))
        thread.start()
        thread.join()
        assert clock.figures().jumps == 0


# Waits of the kernel and of queues that follow a wait on the clock, and locks that no thread holds while it sleeps.
_ALLOWED = {
    "virtual_clock.py": r"time\.(monotonic_ns\(\)|CLOCK_MONOTONIC)",
    "waits.py": r".*",
    "threads.py": r"threading\.Thread",
    "journal.py": r"time\.(time_ns|monotonic_ns)\(\)",  # how far wall time is ahead of CLOCK_MONOTONIC
    "ranks.py": r"time\.monotonic\(\)",  # how long ranks may take to end, when the run is over
    "checkpoints/background.py": r"time\.thread_time\(\)",
    "checkpoints/mapped_slots.py": r"threading\.Lock",
    "readers/numpy_files.py": r"threading\.Lock",
    "checkpoints/own_files.py": r"threading\.Lock",
    "loaders/tf_data.py": r"time\.sleep",  # TensorFlow's own threads wait in real time
}
_REAL = re.compile(
    r"\btime\.\w+(?:\(\))?|\bThreadPoolExecutor\b|\bthreading\.(?:Thread|Event|Lock|Condition|Semaphore)\b|eventfd_read"
)


def test_the_emulator_sleeps_and_waits_on_its_clock() -> None:
    """Replays have players of their own for each clock."""
    folder, found = ROOT / "benchmark" / "emulator", []
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        if not name.startswith("recorded/"):
            lines = [line.partition("#")[0] for line in path.read_text().splitlines() if not line.startswith(("import", "from"))]
            uses = [use for line in lines for use in _REAL.findall(line)]
            found += [(name, use) for use in uses if not re.fullmatch(_ALLOWED.get(name, "nothing"), use)]
    assert not found


def test_an_unknown_clock_is_refused(twin_path: Path) -> None:
    with pytest.raises(UsageError, match=r"twin\.clock"):
        workload.load(twin_path, ["++twin.clock=fast"])
