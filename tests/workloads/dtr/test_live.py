"""Training within a memory budget: the budget holds at every allocation, and every number equals that of plain training."""

import copy
import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from iotwin.common.errors import UsageError  # noqa: E402
from iotwin.workloads.dtr.live import rematerializer, values  # noqa: E402
from iotwin.workloads.dtr.live.device_memory import DeviceMemory  # noqa: E402
from iotwin.workloads.dtr.live.memory import BudgetError  # noqa: E402
from iotwin.workloads.dtr.live.offload import OffloadFile  # noqa: E402
from iotwin.workloads.dtr.live.operations import AllocationPlans  # noqa: E402
from iotwin.workloads.dtr.live.session import Account, Rematerialize  # noqa: E402
from iotwin.workloads.dtr.live.train import BudgetedTraining, train, train_plain  # noqa: E402
from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS  # noqa: E402
from iotwin.workloads.models import MODELS, build  # noqa: E402

Step = Callable[[nn.Module, Tensor], Tensor]  # the loss of a module for a batch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are computed faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(make: Callable[[], nn.Module], step: Step, budget: int | str | None = "plain", **choice: Any) -> tuple[Any, Account]:
    """Train three steps; return (losses, gradients, weights and buffers) and the account of the budget."""
    torch.manual_seed(1)
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    data = [torch.randn(256, 32) for _ in range(3)]
    losses = []
    context: Any = nullcontext() if budget == "plain" else Rematerialize(budget, device="cpu", **choice)
    with context:
        for batch in data:
            optimizer.zero_grad()
            loss = step(module, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    gradients = [parameter.grad for parameter in module.parameters()]
    account = Rematerialize(None, device="cpu").account if budget == "plain" else context.account
    return (losses, gradients, list(module.state_dict().values()), torch.get_rng_state()), account


def assert_equal(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    for these, those in ((one[1], other[1]), (one[2], other[2]), ([one[3]], [other[3]])):
        assert all(torch.equal(a, b) for a, b in zip(these, those, strict=True))


def assert_exact(make: Callable[[], nn.Module], step: Step, shares: tuple[float, ...] = (0.85, 0.65), **choice: Any) -> int:
    """Train within budgets between the least and the peak; return the number of operations that were computed again."""
    plain, _ = trained(make, step)
    unlimited, account = trained(make, step, None, **choice)
    assert_equal(plain, unlimited)
    again = 0
    for share in shares:
        budget = int(account.least_bytes + share * (account.peak_bytes - account.least_bytes))
        limited, limits = trained(make, step, budget, **choice)
        assert_equal(plain, limited)
        assert limits.peak_bytes <= budget
        assert limits.evictions > 0
        again += limits.rematerializations
    assert again > 0
    return again


def layers(*middle: Callable[[], nn.Module], depth: int = 6, width: int = 64) -> nn.Module:
    parts: list[nn.Module] = [nn.Linear(32, width)]
    for _ in range(depth):
        parts += [nn.Linear(width, width), *(make() for make in middle)]
    return nn.Sequential(*parts)


def square(module: nn.Module, batch: Tensor) -> Tensor:
    return module(batch).square().mean()


MODULES = {
    "plain": lambda: layers(nn.Tanh),
    "in place": lambda: layers(lambda: nn.ReLU(inplace=True)),
    "dropout": lambda: layers(lambda: nn.Dropout(0.3)),
    "dropout in place": lambda: layers(lambda: nn.Dropout(0.3, inplace=True), nn.ELU),
    "rrelu": lambda: layers(nn.RReLU),
    "batch norm": lambda: layers(lambda: nn.BatchNorm1d(64), nn.ReLU),
    "layer norm": lambda: layers(lambda: nn.LayerNorm(64), nn.GELU),
    "spectral norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(32, 64)), layers_of(64)),
}


def layers_of(width: int) -> nn.Module:
    return nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(width, width), nn.Sigmoid())])


@pytest.mark.parametrize("name", MODULES)
def test_modules_train_exactly(name: str) -> None:
    assert_exact(MODULES[name], square)


def _views(module: nn.Module, batch: Tensor) -> Tensor:
    hidden = module(batch)
    copied = hidden.clone()
    copied[:, ::2] = hidden[:, 1::2] * 2
    copied.view(-1)[5:70].mul_(3)
    left, right = copied.t().chunk(2)
    return (left.exp().clamp(max=4) * right).sum() / 1000


def _accumulated(module: nn.Module, batch: Tensor) -> Tensor:
    for part in batch.chunk(4)[1:]:
        square(module, part).backward()
    return square(module, batch[:64])


def _autocast(module: nn.Module, batch: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        hidden = module(batch)
    return hidden.float().square().mean()


def _retained(module: nn.Module, batch: Tensor) -> Tensor:
    loss = square(module, batch)
    loss.backward(retain_graph=True)
    return loss * 2


def _checkpointed(module: nn.Module, batch: Tensor) -> Tensor:
    hidden = batch
    for part in module:
        hidden = checkpoint(part, hidden, use_reentrant=False)
    return hidden.square().mean()


def _data_dependent(module: nn.Module, batch: Tensor) -> Tensor:
    hidden = module(batch)
    chosen = hidden[hidden > 0]
    return chosen.square().sum() / (hidden > 0.1).nonzero().shape[0]


def _several_results(module: nn.Module, batch: Tensor) -> Tensor:
    hidden = module(batch)
    largest, places = hidden.sort(dim=1)
    return (largest * places.float().cos()).var() + torch.stack(hidden.unbind(1)[:8]).std(dim=1).sum()


def _compiled(module: nn.Module, batch: Tensor) -> Tensor:
    return square(torch.compile(module, backend="aot_eager"), batch)


def _clipped(module: nn.Module, batch: Tensor) -> Tensor:
    square(module, batch).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    return square(module, batch)


STEPS = {
    "views written through": _views, "accumulated": _accumulated, "autocast": _autocast, "retained graph": _retained,
    "checkpointed": _checkpointed, "compiled": _compiled, "data dependent": _data_dependent, "several results": _several_results,
    "clipped": _clipped,
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps_train_exactly(name: str) -> None:
    assert_exact(lambda: layers(nn.Tanh, lambda: nn.Dropout(0.1)), STEPS[name])


@pytest.mark.parametrize("heuristic", [name for name in HEURISTICS if not name.startswith("Ab")])
def test_heuristics_train_exactly(heuristic: str) -> None:
    assert_exact(MODULES["dropout"], square, heuristic=heuristic)


def test_search_options_train_exactly() -> None:
    assert_exact(MODULES["batch norm"], square, sampling=True)
    assert_exact(MODULES["batch norm"], square, ignore_small=True)


def test_pytorch_that_cannot_exchange_memory_trains_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("values", "rematerializer", "runtime"):
        monkeypatch.setattr(f"iotwin.workloads.dtr.live.{module}.CAN_SWAP", False)
    assert_exact(MODULES["in place"], _views)


def test_operation_that_changes_what_it_reads_is_repeated_on_the_old_content() -> None:
    """Batch normalisation by running means, which the next operation overwrites; and one that returns what it overwrites."""

    def run(budget: int | None) -> tuple[list[Tensor], Account]:
        mean, variance, kept = torch.zeros(64), torch.ones(64), []
        with Rematerialize(budget, device="cpu") as session:
            last = torch.zeros(100_000)
            batch = torch.arange(16_384.0).view(256, 64).clone()
            for step in range(8):
                kept.append(torch.native_batch_norm(batch, None, None, mean, variance, False, 0.1, 1e-5)[0])
                kept.append(torch.native_batch_norm(batch, None, None, mean, variance, True, 0.1, 1e-5)[0])
                mean.add_(step)
                torch.add(batch.flatten()[:100], last[:100], out=last[:100])
                kept.append(last * 2)
        return kept, session.account

    expected, account = run(None)
    found, limited = run(account.peak_bytes * 8 // 10)
    assert limited.rematerializations > 0
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_equal_options_of_other_bits_are_repeated_apart() -> None:
    """0.0 and -0.0 are equal, and so are 1 and True, but their results differ."""
    with Rematerialize(150_000, device="cpu") as session:
        ones = torch.ones(4000)
        kept = [ones * 0.0, ones * -0.0, torch.full((4000,), 1, dtype=None), torch.full((4000,), True, dtype=None)]
        rest = [ones + number for number in range(10)]
        total = sum(float(one.sum()) for one in rest)
    assert total == 4000 * (10 + 45)
    assert session.account.rematerializations > 0
    assert [bool(one.signbit().any()) for one in kept[:2]] == [False, True]
    assert [one.dtype for one in kept[2:]] == [torch.int64, torch.bool]


def test_blocks_that_an_allocator_does_not_split_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a GPU's allocator, which gives storages over 1 MiB up to 1 MiB more than they need."""
    hidden, most = 1_000_000, [0]
    session = Rematerialize(20_000_000, device="cpu")
    memory = session._runtime.memory

    def allocated(_: Any) -> int:
        alive = [storage.nbytes() for storage in (stored() for stored in memory._storages if stored.resident) if storage]
        return sum(size + hidden * (size > 1 << 20) for size in alive)

    real = DeviceMemory.timed

    def timed(device: DeviceMemory, plan: Any, func: Any, args: Any, kwargs: Any) -> Any:
        found = real(device, plan, func, args, kwargs)
        device.unseen += plan.spare_bytes  # as on a GPU
        most[0] = max(most[0], allocated(device) + plan.fresh_bytes + hidden * (plan.fresh_bytes > 1 << 20))
        return found

    monkeypatch.setattr(DeviceMemory, "spare", lambda _, size: (1 << 20) * (size > 1 << 20))
    monkeypatch.setattr(DeviceMemory, "allocated", allocated)
    monkeypatch.setattr(DeviceMemory, "timed", timed)
    memory.plans = AllocationPlans(memory.device)
    with session:
        results = [torch.ones(300_000)]
        for _ in range(15):
            results.append(results[-1] + 1)
        sums = [int(one[0]) for one in results]
        del results
    assert sums == list(range(1, 17))
    assert session.account.evictions > 0
    assert 15_000_000 < most[0] <= 20_000_000


def test_methods_of_tensors_are_exchanged_only_within_a_budget() -> None:
    before = dict(vars(Tensor))
    with Rematerialize(None, device="cpu"):
        assert vars(Tensor)["numpy"] is not before.get("numpy")
    assert dict(vars(Tensor)) == before


def test_calls_on_other_devices_are_planned_apart() -> None:
    """Results on a device without a budget take no bytes of the budget's device, whatever was called before."""
    with Rematerialize(None, device="cpu") as session:
        _ = torch.ones(300, 300, device="meta") + 1
        before = session.account.peak_bytes
        kept = torch.ones(300, 300) + 1
    assert before == 0
    assert session.account.peak_bytes == 2 * kept.nbytes


def test_operation_that_writes_two_kinds_of_storages_is_repeated_on_the_old_contents() -> None:
    """It reads and changes a small counter, which is never evicted, and a large tensor, which is."""
    torch.library.define("iotwin_tests::add_and_count", "(Tensor(a!) sums, Tensor(b!) counter) -> ()")

    def add_and_count(sums: Tensor, counter: Tensor) -> None:
        sums.add_(counter)
        counter.add_(1)

    torch.library.impl("iotwin_tests::add_and_count", "CPU", add_and_count)

    def run(budget: int | None) -> tuple[list[Tensor], Account]:
        counter, kept = torch.ones(1), []
        with Rematerialize(budget, device="cpu") as session:
            for _ in range(6):
                sums = torch.zeros(10_000)
                torch.ops.iotwin_tests.add_and_count(sums, counter)
                kept.append(sums)
        return [*kept, counter], session.account

    expected, account = run(None)
    found, limited = run(account.peak_bytes * 6 // 10)
    assert limited.rematerializations > 0
    assert [int(tensor[0]) for tensor in expected] == [1, 2, 3, 4, 5, 6, 7]
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_result_that_grows_is_counted_and_stays() -> None:
    """PyTorch enlarges a result `out` that is too small; the bytes count, and the numbers are right."""
    with Rematerialize(200_000, device="cpu") as session:
        base = torch.ones(5000)
        grown = torch.empty(300)
        with pytest.warns(UserWarning, match="was resized"):
            torch.mul(base, 3, out=grown)
        rest = [base + number for number in range(20)]
        total = sum(float(tensor.sum()) for tensor in rest)
        del rest
    assert session.account.peak_bytes <= 200_000
    assert session.account.evictions > 0
    assert total == 5000 * (20 + sum(range(20)))
    assert int(grown.sum()) == 15_000


def test_copies_of_evicted_tensors_are_whole(tmp_path: Path) -> None:
    """What copies, prints or saves tensors reads them without operations that the runtime sees as such."""
    with Rematerialize(400_000, device="cpu") as session:
        hidden = [torch.ones(100, 100)]
        for _ in range(20):
            hidden.append(hidden[-1] + 1)
        copied = copy.deepcopy(hidden[1])
        torch.save(hidden[2], tmp_path / "tensor.pt")
        pickled = pickle.loads(pickle.dumps(hidden[3]))
        with torch.inference_mode():
            shown = repr(hidden[4] * 2)
        del hidden
    assert session.account.evictions > 0
    assert (copied[0, 0], torch.load(tmp_path / "tensor.pt")[0, 0], pickled[0, 0]) == (2, 3, 4)
    assert "10." in shown


def test_own_optimizer_trains_exactly() -> None:
    """Parameters that no optimizer of PyTorch changes: gradients that depend on them are computed before they change."""

    def run(budget: Any) -> Any:
        torch.manual_seed(0)
        module, batch, kept = MODULES["plain"](), torch.randn(256, 32), []
        with nullcontext() if budget == "plain" else Rematerialize(budget, device="cpu") as session:
            for _ in range(3):
                square(module, batch).backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.sub_(parameter.grad * 0.1)
                        parameter.grad = None
                kept.append(module(batch))
        return [*module.parameters(), *kept], session

    plain, _ = run("plain")
    _, unlimited = run(None)
    limited, session = run(unlimited.account.peak_bytes * 9 // 10)
    assert session.account.evictions > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, limited, strict=True))


@pytest.mark.parametrize("name", ["transformer", "resnet18", "unet", "lstm", "gan", "gnmt"])
def test_peak_falls_with_the_budget(name: str) -> None:
    def run(budget: int | None) -> tuple[Any, Account]:
        torch.manual_seed(0)
        module, inputs, loss = build(name, "tiny")
        given = inputs(MODELS[name])
        with Rematerialize(budget, device="cpu") as session:
            loss(module, *given).backward()
        return [parameter.grad for parameter in module.parameters()], session.account

    expected, unlimited = run(None)
    least, peak = unlimited.least_bytes, unlimited.peak_bytes
    peaks = []
    for share in (1.0, 0.9, 0.8, 0.75):
        found, account = run(round(least + share * (peak - least)))
        assert account.peak_bytes <= (account.budget_bytes or 0)
        peaks.append(account.peak_bytes)
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert peaks == sorted(peaks, reverse=True)


def test_account_equals_allocations_that_the_profiler_saw() -> None:
    """Without kernels that allocate for themselves, the allocator's own events give the same peak."""

    def run() -> Account:
        with Rematerialize(budget, device="cpu") as session:
            weight, hidden = torch.ones(256, 256, requires_grad=True), torch.ones(64, 256)
            for _ in range(6):
                hidden = (hidden * 2).tanh() @ weight
            hidden.sum().backward()
        return session.account

    budget = None
    budget = int(run().peak_bytes * 0.9)
    run()  # the shapes of results are looked up before the profiler begins
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        account = run()
    total = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    assert account.evictions > 0
    assert 0.97 * account.peak_bytes <= peak <= (account.budget_bytes or 0)


def test_tensors_that_leave_are_whole() -> None:
    with Rematerialize(300_000, device="cpu") as session:
        hidden = [torch.ones(100, 100)]
        for _ in range(20):
            hidden.append(hidden[-1] + 1)
        kept = hidden[::5]
        read = hidden[1].numpy().sum(), hidden[2].tolist()[0][0]
        del hidden
    assert session.account.evictions > 0
    assert read == (20_000, 3)
    assert [tensor.sum().item() for tensor in kept] == [10_000, 60_000, 110_000, 160_000, 210_000]


@pytest.mark.parametrize("swap", [True, False])
def test_saved_tensors_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool) -> None:
    """If the storage is said to take no time, each evicted tensor is saved, and none is computed again."""
    monkeypatch.setattr(OffloadFile, "save_ns", lambda self, size: 0)
    monkeypatch.setattr(OffloadFile, "load_ns", lambda self, size: 0)
    for module in ("values", "rematerializer", "runtime"):
        monkeypatch.setattr(f"iotwin.workloads.dtr.live.{module}.CAN_SWAP", swap and values.CAN_SWAP)
    plain, _ = trained(MODULES["dropout in place"], _views)
    _, free = trained(MODULES["dropout in place"], _views, None)
    limited, account = trained(MODULES["dropout in place"], _views, free.peak_bytes * 3 // 4, offload=tmp_path)
    assert_equal(plain, limited)
    assert account.peak_bytes <= (account.budget_bytes or 0)
    assert account.rematerializations == 0
    assert account.evictions > 0
    assert account.restored_bytes > 0
    assert account.offloaded_bytes > 0
    assert not list(tmp_path.iterdir())


def test_saved_tensors_that_cannot_be_read_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OffloadFile, "save_ns", lambda self, size: 0)
    monkeypatch.setattr(OffloadFile, "load_ns", lambda self, size: 0)
    with Rematerialize(200_000, device="cpu", offload=tmp_path) as session:
        monkeypatch.setattr(os, "preadv", broken)
        hidden = [torch.ones(100, 100)]
        for _ in range(12):
            hidden.append(hidden[-1] + 1)
    assert [int(tensor[0, 0]) for tensor in hidden] == list(range(1, 14))
    assert session.account.offloaded_bytes > 0
    assert "cannot be read: Input/output error" in capsys.readouterr().err


def test_offload_file_gives_back_what_it_was_given(tmp_path: Path) -> None:
    """Copies of all sizes are equal to what was saved; places that are free again are used again."""
    file = OffloadFile(tmp_path)
    for _ in range(3):
        tensors = [torch.randn(size) for size in (1, 1000, 1024, 300_000, 600_001)]
        copies = [file.save(tensor.untyped_storage()) for tensor in tensors]
        for tensor, saved in reversed(list(zip(tensors, copies, strict=True))):
            assert saved is not None
            found = saved.read(torch.device("cpu"))
            assert torch.equal(torch.empty(0).set_(found), tensor)
        del copies, saved
    assert file.traffic_bytes == (3 * 4 * 902_026, 3 * 4 * 902_026)
    assert os.fstat(file._file.fileno()).st_size < 6_000_000


def test_full_file_system_is_noted_and_tensors_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = Rematerialize(None, device="cpu", offload=tmp_path)
    assert real.account.offloaded_bytes == 0
    monkeypatch.setattr(OffloadFile, "save_ns", lambda self, size: 0)
    monkeypatch.setattr(OffloadFile, "load_ns", lambda self, size: 0)
    with Rematerialize(300_000, device="cpu", offload=tmp_path) as session:
        monkeypatch.setattr(os, "pwrite", full)
        hidden = [torch.ones(100, 100)]
        for _ in range(12):
            hidden.append(hidden[-1] + 1)
    assert [int(tensor[0, 0]) for tensor in hidden] == list(range(1, 14))
    assert session.account.rematerializations > 0
    assert "computed again, not saved: No space left" in capsys.readouterr().err
    monkeypatch.undo()
    with pytest.raises(UsageError, match="cannot hold evicted tensors: No such file"):
        Rematerialize(1, device="cpu", offload=tmp_path / "none")


@pytest.mark.parametrize("heuristic", ["LRU", "RandomStorage"])
def test_inputs_that_wait_are_given_up_where_a_budget_is_tight(heuristic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These heuristics evict so much that inputs of an operation do not fit together with what computes one of them again."""
    locks, before_step = [], Rematerialize._before_step

    def note_locks(session: Rematerialize, *arguments: Any) -> None:
        locks.extend(value.locks for value in gc.get_objects() if type(value) is values.Value)
        before_step(session, *arguments)

    monkeypatch.setattr(Rematerialize, "_before_step", note_locks)
    found = train(BudgetedTraining("resnet18", steps=1), ratio=0.6, heuristic=heuristic, compare_plain=True)
    assert found["gradients_equal"] and found["weights_equal"] and found["over_budget"] == 0
    assert found["least_bytes"] <= found["budget_bytes"]
    assert locks and not any(locks)


def test_an_input_is_given_up_while_another_is_computed() -> None:
    with Rematerialize(1_050_000, heuristic="LRU", device="cpu") as session:
        session.pin(given := torch.ones(25_000))  # 100 kB
        summed = given.repeat(8).view(8, -1).sum(0)
        moved = given + 1
        torch.ones(200_000)  # evicts `summed`
        product = moved * summed
        assert session.account.rematerializations == 3  # 800 kB and their sum, for which `moved` is evicted, then `moved`
        assert int(product[0]) == 16


def test_inputs_that_evict_one_another_too_often_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rematerializer, "_MOST_UNLOCKED", 1)
    with pytest.raises(BudgetError, match=r"inputs that wait for it evict one another; no budget below 10[01]"):
        test_an_input_is_given_up_while_another_is_computed()


def test_refused_training_names_the_least_budget_of_a_whole_step() -> None:
    """Although the first operations need less."""
    training = BudgetedTraining("mlp", batch=4, steps=2)
    with pytest.raises(BudgetError) as error:
        train(training, 150_000, search=False)
    least = error.value.least_bytes
    assert str(error.value).endswith(f"; no budget below {least} bytes is possible")
    assert 2 * 150_000 < least <= train_plain(training)["peak_bytes"]


@pytest.mark.parametrize("name", ["mlp", "lstm", "transformer"])
def test_a_budget_that_is_found_is_enough_and_hardly_larger_than_one_that_is_refused(name: str) -> None:
    """The heuristic does not depend on times, so that each try ends in the same way when it is repeated."""

    def two_steps() -> None:
        torch.manual_seed(0)
        built = build(name, "tiny")
        optimizer = torch.optim.SGD(built.module.parameters(), 0.01, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            built.loss(built.module, *built.make_inputs(4)).backward()
            optimizer.step()

    tried: dict[int, bool] = {}

    class Noted(Rematerialize):
        def __exit__(self, kind: Any, *error: Any) -> bool | None:
            if self.account.budget_bytes is not None:
                tried[self.account.budget_bytes] = kind is None
            return super().__exit__(kind, *error)

    impossible, enough = Noted.find_budget(two_steps, limit_s=600, heuristic="LargestStorage", device="cpu")
    refused = max([impossible, *(budget for budget, passed in tried.items() if not passed)])
    assert impossible <= refused <= enough <= 1.06 * refused
    with Rematerialize(enough, "LargestStorage", device="cpu") as session:
        two_steps()
    assert session.account.over_budget == 0
    with pytest.raises(BudgetError) as error, Rematerialize(round(0.99 * impossible), "LargestStorage", device="cpu"):
        two_steps()
    assert ["iotwin.dtr_budget" in note for note in error.value.__notes__] == [True]


def test_refused_training_names_a_budget_that_is_enough() -> None:
    """The bytes below which no budget is possible are not enough for this heuristic; what is named is."""
    training = BudgetedTraining("transformer", batch=1, steps=2)
    with pytest.raises(BudgetError) as error:
        train(training, 100_000, heuristic="LargestStorage")
    least, enough = error.value.least_bytes, error.value.enough_bytes or 0
    assert str(error.value).endswith(f"no budget below {least} bytes is possible, and {enough} bytes were enough for two steps")
    assert train(training, enough, heuristic="LargestStorage")["over_budget"] == 0


def test_impossible_budget_ends_in_one_line() -> None:
    text = "a memory budget of 1000 bytes cannot be kept: .* no budget below 4096 bytes is possible"
    with pytest.raises(BudgetError, match=text) as error, Rematerialize(1000, device="cpu"):
        torch.ones(32, 32)
    assert "\n" not in str(error.value)
    copied = pickle.loads(pickle.dumps(error.value))  # as of a job's process
    assert (str(copied), copied.reason, copied.least_bytes) == (str(error.value), error.value.reason, 4096)


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"])
def test_number_in_a_storage_of_all_elements_is_reserved_before(loss: str) -> None:
    given = torch.rand(64, 64), torch.ones(64, 64)
    with pytest.raises(BudgetError, match=f"{loss}.* needs 16384 bytes"), Rematerialize(40_000, device="cpu"):
        getattr(functional, loss)(*given)


def test_error_in_a_computation_leaves_whole_tensors() -> None:
    """After an error, tensors that were evicted are computed again, and the next budget works."""
    with pytest.raises(RuntimeError, match="cannot be multiplied"), Rematerialize(50_000, device="cpu") as session:
        first = torch.ones(50, 50)
        rest = [first + index for index in range(8)]
        _ = first @ torch.ones(3, 3)
    assert session.account.evictions > 0
    assert [int(tensor[0, 0]) for tensor in rest] == list(range(1, 9))
    with Rematerialize(50_000, device="cpu"):
        assert (first + 1).sum() == 5000


def test_one_budget_at_a_time() -> None:
    with Rematerialize("1MB", device="cpu"):
        with pytest.raises(UsageError, match="a memory budget is in force already"), Rematerialize("1MB", device="cpu"):
            pass
        failed: list[str] = []

        def enter() -> None:
            try:
                Rematerialize("1MB", device="cpu").__enter__()
            except UsageError as error:
                failed.append(str(error))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert failed


def test_threads_read_evicted_tensors() -> None:
    """Threads that start within the budget, and older ones that get work there, compute within it; numbers stay exact."""
    torch.manual_seed(0)
    module, batch = layers(nn.Tanh), torch.randn(256, 32)
    before = [activation.sum() for activation in activations(module, batch)]
    square(module, batch).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    old = ThreadPoolExecutor(1)
    old.submit(int).result()  # starts its thread
    with old, Rematerialize(450_000, device="cpu") as session, ThreadPoolExecutor(1) as new:
        for pool in (old, new):
            found = activations(module, batch)
            assert session.account.evictions > 0
            computed = session.account.rematerializations
            assert all(map(torch.equal, pool.submit(lambda found=found: [each.sum() for each in found]).result(), before))
            assert session.account.rematerializations > computed
            del found
        loss = square(module, batch)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        assert session.account.over_budget == 0
    assert all(torch.equal(one.grad, other) for one, other in zip(module.parameters(), gradients, strict=True))


_OLD_THREAD = """
import threading, torch
from iotwin import dtr
go, done = threading.Event(), threading.Event()
rest = []
thread = threading.Thread(target=lambda: (go.wait(), print(%s), done.set()), daemon=True)
thread.start()
with dtr(200_000, device="cpu") as session:
    first = torch.ones(100, 100) + 1
    rest += [first + index for index in range(8)]
    go.set()
    done.wait(60)
"""


@pytest.mark.parametrize("read", ["[each.sum().item() for each in rest]", "__import__('ctypes').string_at(8)"])
def test_old_threads_that_read_evicted_tensors_end_the_process_with_one_line(read: str) -> None:
    """Other wrong addresses end it as without a budget."""
    found = subprocess.run([sys.executable, "-c", _OLD_THREAD % read], capture_output=True, text=True, timeout=120)
    if "rest" in read:
        assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
        assert "a tensor was read after its eviction" in found.stderr
    else:
        assert (found.returncode, found.stderr) == (-signal.SIGSEGV, "")


def activations(module: nn.Module, batch: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return list(accumulate(module, lambda given, layer: layer(given), initial=batch))


def test_thread_that_outlives_the_budget_computes_without_it() -> None:
    ended, results = threading.Event(), []

    def wait_and_compute() -> None:
        ended.wait(60)
        results.append(torch.ones(1000, 1000).sum())

    with Rematerialize(100_000, device="cpu") as session:
        thread = threading.Thread(target=wait_and_compute)
        thread.start()
    ended.set()
    thread.join()
    assert results == [1_000_000] and session.account.peak_bytes <= 100_000


def test_cpu_with_an_index_is_the_cpu() -> None:
    with Rematerialize(10_000, device="cpu:1") as session:
        kept = [torch.ones(32, 32) for _ in range(4)]
        assert len(kept) == 4 and session.account.evictions == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"budget": 0}, "not above 0"),
        ({"budget": "1 quart"}, "unknown unit"),
        ({"budget": 1, "heuristic": "best"}, "unknown heuristic"),
        ({"budget": 1, "device": "meta"}, "the device must be cpu or cuda, not meta"),
        ({"budget": 1, "device": "gpu"}, "the device 'gpu' is unknown"),
        ({"budget": 1, "device": "cuda:99"}, "the device cuda:99 needs a GPU"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Rematerialize(**options)


def test_history_ends_with_each_step() -> None:
    """A running sum and a momentum, which live on, do not keep the operations of earlier steps alive."""
    torch.manual_seed(0)
    module = MODULES["plain"]()
    optimizer, total = torch.optim.Adam(module.parameters()), torch.zeros(())
    with Rematerialize(None, device="cpu") as session:
        sizes = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = square(module, torch.randn(64, 32))
            loss.backward()
            optimizer.step()
            total += loss.detach()
            del loss
            gc.collect()
            sizes.append(sum(isinstance(one, values.Operation) for one in gc.get_objects()))
        assert session.account.evictions == 0
    assert sizes[1] == sizes[2] == sizes[3]
    assert not functional.relu(total).isnan()


def test_plain_training_has_the_weights_of_training_within_a_budget() -> None:
    plain = train_plain(BudgetedTraining("lstm:length=12", batch=64, steps=2))
    assert plain["budget_bytes"] is plain["evictions"] is None and len(plain["step_s"]) == 2
    limited = train(BudgetedTraining("lstm:length=12", batch=64, steps=2), plain["peak_bytes"] * 8 // 10)
    assert limited["evictions"] > 0 and limited["weights_sha256"] == plain["weights_sha256"]
    module, inputs, _ = build("lstm:length=12", "tiny")
    assert plain["model_bytes"] == 4 * sum(parameter.numel() for parameter in module.parameters())
    assert plain["input_bytes"] == 4 * sum(tensor.numel() for tensor in inputs(64))
