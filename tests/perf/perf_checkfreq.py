"""CheckFreq's library: cost of a checkpoint to a training loop, compared with waiting and with other libraries.

torchsnapshot and torch_checkpointing take part where they can be imported: as they are, which sync nothing, and with a thread
that syncs their files behind them, for a checkpoint that outlasts a loss of power as ours and, but for its index, torch's does.
"""

import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager, CFMode
from iotwin.workloads.state.snapshot import Buffer, take
from iotwin.workloads.state.snapshot_writer import PROCESS
from tests.perf.figures import Figure, interleaved, median_ratio

_WIDTH, _LAYERS, _BATCH = 1024, 6, 64
_INTERVAL, _STEPS, _ROUNDS = 8, 64, 7
_GIB = 1 << 30
_SYNCED = " and a sync"
_NAMES = {
    "dcp": "torch's async_save",
    **{name + end: name + end for name in ("torchsnapshot", "torch_checkpointing") for end in ("", _SYNCED)},
}


def measure() -> list[Figure]:
    """Return the figures."""
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # two of them wait for one another where processors are shared, more than they work
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        base = Path(name)
        return [*_copying(), *_loops(base)]


def _network(width: int = _WIDTH) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(*[layer for _ in range(_LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())])
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, update: Callable[[], object] | None = None
) -> None:
    optimizer.zero_grad(set_to_none=False)
    model(batch).pow(2).mean().backward()
    (update or optimizer.step)()


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor], after: Callable[[int], None],
    update: Callable[[], object] | None = None,
) -> None:  # fmt: skip
    for number, batch in enumerate(batches, 1):
        _step(model, optimizer, batch, update)
        after(number)


def _processor_s() -> float:
    """Return the processor seconds of this process and of those that it has started and that run."""
    pids, ticks = [os.getpid()], 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # of a thread that has just ended
                pids += map(int, (task / "children").read_text().split())
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _copying() -> list[Figure]:
    model, optimizer = _network()
    model(torch.ones(1, _WIDTH)).sum().backward()
    optimizer.step()
    chk, buffer = CFCheckpoint(model=model, optimizer=optimizer), Buffer()
    size_bytes = take(buffer, chk.state()).size_bytes
    source, target = torch.ones(size_bytes, dtype=torch.uint8), torch.ones(size_bytes, dtype=torch.uint8)

    def timed(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    ours, plain = interleaved(21, lambda: timed(lambda: take(buffer, chk.state())), lambda: timed(lambda: target.copy_(source)))
    buffer.close()
    detail = f"{size_bytes / 2**20:.0f} MiB in {1e3 * statistics.median(ours):.1f} ms"
    return [
        Figure(
            "CheckFreq: snapshot of a training state over one copy of as many bytes",
            median_ratio(ours, plain),
            1.3,
            detail=detail,
        )
    ]


class _Loop:
    """One way of taking checkpoints in the same loop: its seconds, stalls and processor seconds a round, the last one durable."""

    def __init__(self, base: Path, name: str) -> None:
        self.store, self._way = base / name, name.removesuffix(_SYNCED)
        self._syncs = name.endswith(_SYNCED)
        self.stalls: list[float] = []
        self.cpu_s: list[float] = []
        self.bytes = 0

    def run(self) -> float:
        shutil.rmtree(self.store, ignore_errors=True)
        model, optimizer = _network()
        data = [torch.randn(_BATCH, _WIDTH) for _ in range(4)] * (_STEPS // 4)
        for batch in data[:4]:
            model(batch).pow(2).mean().backward()
        optimizer.step()  # its state is there
        return float(getattr(self, f"_{self._way}")(model, optimizer, data))

    @contextmanager
    def _measured(self, stalls: list[float]) -> Iterator[list[float]]:
        """Take the times of the block; yield where its seconds will be."""
        seconds: list[float] = []
        used, begin = _processor_s(), time.perf_counter()
        yield seconds
        seconds.append(time.perf_counter() - begin)
        self.cpu_s.append(_processor_s() - used)
        self.stalls += stalls

    def _none(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        with self._measured([]) as seconds:
            _steps(model, optimizer, data, lambda number: None)
        return seconds[0]

    def _auto(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor], mode: CFMode = CFMode.AUTO
    ) -> float:
        with CFManager(self.store, CFCheckpoint(model=model, optimizer=optimizer), mode=mode, keep_epoch_chk=False) as manager:
            manager.worker = PROCESS  # as a profile chooses
            manager.save_cpu({}, synchronous=True)  # which makes memory ready and starts the process
            manager.wait_for_snapshot()
            iterator = CFIterator(data, bs=_BATCH, chk_freq=_INTERVAL, cf_manager=manager)
            iterator.before_epoch_checkpoint = manager.wait
            before = len(manager.stalls.each_s)
            stalls: list[float] = []
            with self._measured(stalls) as seconds:
                for number, batch in enumerate(iterator, 1):
                    _step(model, optimizer, batch)
                    if number == _STEPS:  # what comes then is the end of the epoch
                        manager.wait()
                        break
                stalls += manager.stalls.each_s[before:]
        self.bytes = manager.persisted[-1].size_bytes
        return seconds[0]

    def _sync(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        return self._auto(model, optimizer, data, CFMode.MANUAL)

    def _dcp(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        def save(path: Path) -> Callable[[], object]:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            return cast("Future[object]", dcp.async_save(state, checkpoint_id=path, no_dist=True)).result

        return self._rival(model, optimizer, data, save)

    def _torchsnapshot(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        from torchsnapshot import Snapshot  # type: ignore[import-not-found]

        def save(path: Path) -> Callable[[], object]:
            return cast("Callable[[], object]", Snapshot.async_take(str(path), {"model": model, "optimizer": optimizer}).wait)

        return self._rival(model, optimizer, data, save)

    def _torch_checkpointing(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        from torch_checkpointing import CheckpointManager  # type: ignore[import-not-found]
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig  # type: ignore[import-not-found]

        # Past the page cache, as it does by itself, it writes what fills no block, which ext4 refuses (0.1.1).
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        manager = CheckpointManager(CheckpointManager.Config(storage_config=storage))

        def save(path: Path) -> Callable[[], object]:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            return cast("Callable[[], object]", manager.save(str(path), state).result)

        try:
            return self._rival(model, optimizer, data, save, manager.lock)
        finally:
            manager.close()

    def _rival(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor],
        save: Callable[[Path], Callable[[], object]], guard: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> float:  # fmt: skip
        """Train by another library, whose `save` returns what waits until it has written, and whose `guard` an update needs."""
        syncing = ThreadPoolExecutor(1)

        def begin_save(path: Path) -> Callable[[], object]:
            wait = save(path)
            return syncing.submit(_sync_behind, wait, path).result if self._syncs else wait

        wait = begin_save(self.store / "first")  # makes memory ready, and starts its process
        wait()
        stalls: list[float] = []

        def after(number: int) -> None:
            nonlocal wait
            if number % _INTERVAL == 0 and number < _STEPS:
                begin = time.perf_counter()
                wait()
                wait = begin_save(self.store / str(number))
                stalls.append(time.perf_counter() - begin)

        def update() -> None:
            begin = time.perf_counter()
            with guard():
                if stalls:
                    stalls[-1] += time.perf_counter() - begin
                optimizer.step()

        with self._measured(stalls) as seconds:
            _steps(model, optimizer, data, after, update)
            wait()
        syncing.shutdown()
        return seconds[0]


def _sync_behind(wait: Callable[[], object], path: Path) -> None:
    """Sync all files of a checkpoint, then its folders, once it is written."""
    wait()
    files = [each for each in path.rglob("*") if each.is_file()]
    for each in [*files, *{file.parent for file in files}, path.parent]:
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _loops(base: Path) -> list[Figure]:
    rivals = [name for name in _NAMES if name == "dcp" or find_spec(name.removesuffix(_SYNCED))]
    loops = {name: _Loop(base, name) for name in ("none", "auto", "sync", *rivals)}
    seconds = dict(zip(loops, interleaved(_ROUNDS, *(loop.run for loop in loops.values())), strict=True))
    stall = {name: statistics.median(loop.stalls) for name, loop in loops.items() if loop.stalls}
    spent = {name: statistics.median(loop.cpu_s) - statistics.median(loops["none"].cpu_s) for name, loop in loops.items()}
    size = f"{loops['auto'].bytes / 2**20:.0f} MiB every {_INTERVAL} steps, median of {_ROUNDS} rounds"
    return [
        Figure("CheckFreq: stall of a checkpoint, waiting for it over in two phases, at the same interval",
               stall["sync"] / stall["auto"], 8, at_most=False,
               detail=f"{1e3 * stall['sync']:.1f} ms against {1e3 * stall['auto']:.1f} ms; {size}"),
        *[
            figure
            for rival in rivals
            for figure in (
                Figure(f"... stall in two phases over that of {_NAMES[rival]}", stall["auto"] / stall[rival], 1,
                       detail=f"{1e3 * stall['auto']:.3g} ms against {1e3 * stall[rival]:.3g} ms"),
                _whole_loop(seconds, rival),
                Figure(f"... processor time added to it in two phases over that of {_NAMES[rival]}",
                       spent["auto"] / spent[rival], 1, detail=f"{spent['auto']:.3g} s against {spent[rival]:.3g} s"),
            )
        ],
        _processor(base),
    ]  # fmt: skip


def _whole_loop(seconds: dict[str, list[float]], rival: str) -> Figure:
    """The loop with checkpoints in two phases over the loop with the rival's, round by round.

    Not what they add to a loop without any: that is less than what such loops differ by, and its ratios tell nothing.
    """
    ratios = [own / other for own, other in zip(seconds["auto"], seconds[rival], strict=True)]
    plain = seconds["none"]
    return Figure(
        f"... time of the loop in two phases over that of {_NAMES[rival]}", statistics.median(ratios), 1,
        detail=f"{min(ratios):.3f} to {max(ratios):.3f}; loops without checkpoints {min(plain):.2f} to {max(plain):.2f} s",
    )  # fmt: skip


def _processor(base: Path) -> Figure:
    """What the writing thread spends over torch.save and fsync of the same state."""
    model, _ = _network(2 * _WIDTH)
    chk = CFCheckpoint(model=model)
    spent: list[float] = []

    def ours() -> float:
        with CFManager(base / "cpu", chk) as manager:
            manager.save()
            manager.wait()
            return manager.persisted[-1].cpu_s / manager.persisted[-1].size_bytes * _GIB

    def torchs() -> float:
        begin = time.thread_time()
        with (base / "torch.pt").open("wb") as file:
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        spent.append(time.thread_time() - begin)
        return float(spent[-1] / sum(value.numel() * 4 for value in model.state_dict().values()) * _GIB)

    own, rivals = interleaved(_ROUNDS, ours, torchs)
    detail = f"{statistics.median(own):.2f} s a GiB against {statistics.median(rivals):.2f} s"
    return Figure("... processor time of the writing over torch.save and fsync", median_ratio(own, rivals), 0.5, detail=detail)
