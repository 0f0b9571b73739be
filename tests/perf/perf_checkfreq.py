"""CheckFreq's library: what one checkpoint costs a training loop, beside waiting and beside torch's own."""

import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.perf.figures import Figure, interleaved, median_ratio
from workloads.checkfreq.checkpoint import CFCheckpoint
from workloads.checkfreq.iterator import CFIterator
from workloads.checkfreq.manager import CFManager, CFMode
from workloads.checkfreq.snapshot import Buffer, take

_WIDTH, _LAYERS, _BATCH = 1024, 6, 64
_INTERVAL, _STEPS, _ROUNDS = 8, 32, 5
_GIB = 1 << 30


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


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: object, after: Callable[[int], None]) -> float:
    """Train; return the seconds it took."""
    begin = time.perf_counter()
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad(set_to_none=False)
        model(batch).pow(2).mean().backward()
        optimizer.step()
        after(number)
    return time.perf_counter() - begin


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
    return [Figure("snapshot of a training state over one copy of as many bytes", median_ratio(ours, plain), 1.3, detail=detail)]


class _Loop:
    """One way of taking checkpoints in the same loop: its seconds, stalls and processor seconds a round."""

    def __init__(self, base: Path, name: str) -> None:
        self.store, self.name = base / name, name
        self.stalls: list[float] = []
        self.cpu_s: list[float] = []
        self.bytes = 0

    def run(self) -> float:
        shutil.rmtree(self.store, ignore_errors=True)
        model, optimizer = _network()
        data = [torch.randn(_BATCH, _WIDTH) for _ in range(4)] * (_STEPS // 4)
        used = time.process_time()
        seconds = getattr(self, f"_{self.name}")(model, optimizer, data)
        self.cpu_s.append(time.process_time() - used)
        return seconds

    def _none(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        return _steps(model, optimizer, data, lambda number: None)

    def _auto(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor], mode: CFMode = CFMode.AUTO
    ) -> float:
        begin = time.perf_counter()
        with CFManager(self.store, CFCheckpoint(model=model, optimizer=optimizer), mode=mode, keep_epoch_chk=False) as manager:
            iterator = CFIterator(data, bs=_BATCH, chk_freq=_INTERVAL, cf_manager=manager)
            iterator.before_epoch_checkpoint = lambda: None
            _steps(model, optimizer, iterator, lambda number: None)
        self.stalls += manager.stalls.each_s[1:-1]  # the first makes memory ready, the last is waited for at the end
        self.bytes = manager.persisted[-1].size_bytes
        return time.perf_counter() - begin

    def _sync(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        return self._auto(model, optimizer, data, CFMode.MANUAL)

    def _dcp(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> float:
        pending = None
        stalls = []

        def after(number: int) -> None:
            nonlocal pending
            if number % _INTERVAL:
                return
            begin = time.perf_counter()
            if pending is not None:
                pending.result()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            pending = dcp.async_save(state, checkpoint_id=self.store / str(number), no_dist=True)
            stalls.append(time.perf_counter() - begin)

        begin = time.perf_counter()
        _steps(model, optimizer, data, after)
        if pending is not None:
            pending.result()
        self.stalls += stalls[1:]
        return time.perf_counter() - begin


def _loops(base: Path) -> list[Figure]:
    loops = {name: _Loop(base, name) for name in ("none", "auto", "sync", "dcp")}
    seconds = dict(zip(loops, interleaved(_ROUNDS, *(loop.run for loop in loops.values())), strict=True))
    stall = {name: statistics.median(loop.stalls) for name, loop in loops.items() if loop.stalls}
    words = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in stall.items())
    cost = {name: statistics.median(each) - statistics.median(seconds["none"]) for name, each in seconds.items()}
    spent = {name: statistics.median(loop.cpu_s) - statistics.median(loops["none"].cpu_s) for name, loop in loops.items()}
    return [
        Figure("stall of a checkpoint, waiting for it over in two phases, at the same interval", stall["sync"] / stall["auto"], 8,
               at_most=False, detail=f"{loops['auto'].bytes / 2**20:.0f} MiB every {_INTERVAL} steps; {words}"),
        Figure("... over that of torch's async_save", stall["auto"] / stall["dcp"], 1),
        Figure("time that checkpoints add to the loop, in two phases over async_save", cost["auto"] / cost["dcp"], 1,
               detail=", ".join(f"{name} {value:.2f} s" for name, value in cost.items())),
        Figure("processor time that they add, in two phases over async_save", spent["auto"] / spent["dcp"], 1,
               detail=", ".join(f"{name} {value:.2f} s" for name, value in spent.items())),
        _processor(base),
    ]  # fmt: skip


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
        return spent[-1] / sum(value.numel() * 4 for value in model.state_dict().values()) * _GIB

    own, rivals = interleaved(_ROUNDS, ours, torchs)
    detail = f"{statistics.median(own):.2f} s a GiB against {statistics.median(rivals):.2f} s"
    return Figure("processor time of the writing over torch.save and fsync", median_ratio(own, rivals), 0.5, detail=detail)
