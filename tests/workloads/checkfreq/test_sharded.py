"""State that is sharded over ranks: each writes its part, and any number of ranks goes on from all parts."""

import ast
import json
import multiprocessing
import os
import traceback
from functools import partial

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.data import DataLoader

from iotwin.common.checkpoints import checkpoints, read_rank, verify
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.ranks import claimed_ports
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager
from iotwin.workloads.state.sharding import sharding_of
from tests.conftest import ROOT

pytestmark = pytest.mark.torch
FORK = multiprocessing.get_context("fork")
STEPS, KEPT = 8, 5


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked job would wait for threads that it does not have
    yield
    torch.set_num_threads(threads)


def made():
    """Rows that neither two nor four ranks share evenly, and running means that are not sharded."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    for layer in (model[0], model[3]) if distributed.is_initialized() else ():
        fully_shard(layer, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model, optimizer, steps, manager=None):
    """Take each step on the same samples on all ranks, as their number may change nothing; return the state as it was kept."""
    found = None
    for step in steps:
        optimizer.zero_grad()
        model(torch.arange(24.0).view(4, 6).sin() * (step + 1)).pow(2).mean().backward()
        optimizer.step()
        if manager is not None and step + 1 == KEPT:
            manager.save_cpu({"steps_so_far": KEPT})  # which the next update waits for
            found = whole(model, optimizer)
    return found


def whole(model, optimizer):
    """The state's numbers in their order."""

    def full(value):
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).flatten().tolist()

    moments = [value for values in optimizer.state_dict()["state"].values() for value in values.values()]
    return [number for value in (*model.state_dict().values(), *moments) for number in full(value)]


def _rank(work, rank, ranks, port, store, answer):
    try:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        distributed.init_process_group("gloo", rank=rank, world_size=ranks)
        found = work(store)
        if rank == 0:
            answer.write_text(json.dumps(found))
        distributed.barrier()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def on_ranks(work, ranks, store, tmp_path):
    """Return what `work` returns on rank 0."""
    with claimed_ports(1) as port:
        arguments = [(work, rank, ranks, port, store, tmp_path / "answer") for rank in range(ranks)]
        processes = [FORK.Process(target=_rank, args=each) for each in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    return json.loads((tmp_path / "answer").read_text())


def kept(store):
    model, optimizer = made()
    with CFManager(store, CFCheckpoint(model=model, optimizer=optimizer)) as manager:
        then = train(model, optimizer, range(STEPS), manager)
    return [then, whole(model, optimizer)]


def resumed(store):
    model, optimizer = made()
    with CFManager(store, CFCheckpoint(model=model, optimizer=optimizer)) as manager:
        left = manager.restore()
        then = whole(model, optimizer)
        train(model, optimizer, range(left["steps_so_far"], STEPS))
    return [then, whole(model, optimizer)]


def profiled(store):
    model, optimizer = made()
    with CFManager(store, CFCheckpoint(model=model, optimizer=optimizer), overwrite=False) as manager:
        iterator = CFIterator(range(100), cf_manager=manager)
        iterator._durations_s = [10.0]
        train(model, optimizer, range(1))
        iterator.profile_all()
        return [iterator.interval, manager.worker, len(manager.persisted)]


def test_each_rank_writes_its_part_and_any_number_goes_on_from_all(tmp_path):
    model, optimizer = made()
    train(model, optimizer, range(STEPS))
    then, end = on_ranks(kept, 2, tmp_path / "store", tmp_path)
    assert end == pytest.approx(whole(model, optimizer), abs=1e-5) and then != end
    [found] = map(verify, checkpoints(tmp_path / "store"))
    assert found.reason is None and found.manifest.step == KEPT
    first, second = (read_rank(found, rank)[0] for rank in (0, 1))
    rows = [part["objects.model.0.weight.$part"].shape for part in (first, second)]
    assert rows == [(3, 6), (2, 6)]
    assert "objects.model.1.running_mean" in first and {name.rpartition(".")[2] for name in second} == {"$part"}
    assert on_ranks(resumed, 2, tmp_path / "store", tmp_path) == [then, end]
    for ranks in (1, 4):  # whose parts are of other sizes, which processors may round differently
        assert on_ranks(resumed, ranks, tmp_path / "store", tmp_path) == [then, pytest.approx(end, abs=1e-5)]


def test_threads_write_the_parts_whose_ranks_are_profiled_together(tmp_path):
    assert on_ranks(profiled, 2, tmp_path / "store", tmp_path) == [1, "thread", 2]
    assert [verify(found).reason for found in checkpoints(tmp_path / "store")] == [None, None]


def refused(store):
    model, _ = made()
    with pytest.raises(UsageError, match="sharded"):
        CFManager(store, CFCheckpoint(model=model), layout="theirs")
    return 0


def test_parts_are_refused_where_they_cannot_be(tmp_path):
    on_ranks(kept, 2, tmp_path / "store", tmp_path)
    model, optimizer = made()
    with (
        CFManager(tmp_path / "store", CFCheckpoint(model=model, optimizer=optimizer)) as manager,
        pytest.raises(IotwinError, match="sharded over 2 ranks; this job's state is not"),
    ):
        manager.restore()
    assert on_ranks(refused, 1, tmp_path / "other", tmp_path) == 0


def cut(store):
    """Compare what is kept of tensors that a mesh of 2 x 2 ranks does not share evenly with the same stretch of the whole."""
    mesh = init_device_mesh("cpu", (2, 2))
    rows, columns, both = Shard(0), Shard(1), Replicate()
    for shape, placements in [((7, 3), [rows, rows]), ((5, 6), [rows, columns]), ((5, 2), [both, rows]), ((1, 4), [rows, rows])]:
        whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
        sharding = sharding_of({"x": distribute_tensor(whole, mesh, placements)})
        part = sharding.parts({"x": distribute_tensor(whole, mesh, placements)})["x"]
        stretch = tuple(slice(first, first + size) for first, size in zip(part["begin"], part["$part"].shape, strict=True))
        assert torch.equal(whole[stretch], part["$part"])
        joined = sharding.joined(iter([{"x": part}]))["x"]
        assert joined.shape == whole.shape and joined.to_local().shape == part["$part"].shape
        assert torch.equal(joined.to_local(), part["$part"])
    return 0


def test_a_part_begins_where_its_rank_s_stretch_of_the_whole_does(tmp_path):
    assert on_ranks(cut, 4, tmp_path / "store", tmp_path) == 0


def test_the_library_uses_nothing_private_of_torch():
    imports = [
        node.module
        for path in (ROOT / "workloads" / "checkfreq").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    assert [name for name in imports if name.startswith("torch.") and "._" in name] == []


def shuffled(store, stop=-1):
    """Take batches of a loader that each rank shuffles by its own seed; return those of all ranks."""
    torch.manual_seed(distributed.get_rank())
    taken = []
    with CFManager(store, CFCheckpoint(model=nn.Linear(1, 1))) as manager:
        loader = DataLoader(range(12), 2, shuffle=True)
        batches = CFIterator(loader, bs=2, chk_freq=4, cf_manager=manager, steps_to_run=stop)
        batches.load_state_dict(manager.restore())
        first = batches.state_dict()["steps_so_far"]
        while batches.epoch < 3 and not batches.exit:
            taken += [batch.tolist() for batch in batches]
            torch.rand(1)  # an evaluation
    of_ranks = [None, None]
    distributed.all_gather_object(of_ranks, taken)
    return [first, of_ranks]


def test_each_rank_s_loader_begins_its_epoch_again(tmp_path):
    _, whole = on_ranks(shuffled, 2, tmp_path / "whole", tmp_path)
    assert whole[0] != whole[1]
    for stop, resumed_step in ((5, 4), (7, 6)):  # within an epoch; behind the end of one
        store = tmp_path / f"store{stop}"
        on_ranks(partial(shuffled, stop=stop), 2, store, tmp_path)
        first, rest = on_ranks(shuffled, 2, store, tmp_path)
        assert first == resumed_step and rest == [taken[first:] for taken in whole]
