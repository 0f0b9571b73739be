"""Scripts of several ranks, which torchrun starts, resume equal on every rank."""

import json
import os
import signal
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from iotwin.commands.detrain.verify import DetrainVerifyCommand
from iotwin.common.checkpoints import checkpoints
from iotwin.common.errors import IotwinError
from iotwin.common.ranks import claimed_ports, rank_variables
from iotwin.workloads.common import torch_ranks
from iotwin.workloads.common.torch_ranks import keep_groups
from iotwin.workloads.detrain import script_ranks
from iotwin.workloads.detrain.saving.gradient_buckets import has_final_buckets, sum_each_gradient
from iotwin.workloads.detrain.saving.plain_values import decode
from iotwin.workloads.detrain.script_ranks import ScriptRanks
from tests.workloads.detrain.script_server import Ended, ScriptServer

SCRIPT = """import argparse
import contextlib
import os
import random
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Noisy(Dataset):
    def __init__(self, items=48):
        self.items = items

    def __len__(self):
        return self.items

    def __getitem__(self, index):
        own = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=own) + 0.1 * torch.randn(16) * random.random(), index


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--die", default="")
    parser.add_argument("--items", type=int, default=48)
    parser.add_argument("--noise", type=int, default=-1)
    parser.add_argument("--sharded", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(16, 33), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(33, 17), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(17, 1))
    if args.sharded:
        fully_shard(model[0])
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    torch.manual_seed(rank)
    random.seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    sampler = DistributedSampler(Noisy(args.items))
    ahead = args.prefetch if args.workers else None
    loader = DataLoader(Noisy(args.items), 4, sampler=sampler, num_workers=args.workers, prefetch_factor=ahead)
    steps = 4 + rank if args.uneven else len(loader)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, (inputs, indices) in enumerate(loader):
            if batch == steps:
                break
            if args.noise == rank and batch == 1:
                inputs = inputs + random.SystemRandom().random()
            if args.show:
                print(*(f"{epoch}:{index}:{row.sum().item().hex()}" for index, row in zip(indices, inputs)))
            last = (batch + 1) % args.accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(inputs).square().mean()
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if args.die == f"{epoch}:{batch}:{rank}":
                os.kill(os.getpid(), 9)
            if args.wait:
                print("step", flush=True)
                time.sleep(args.wait)
        print(rank, epoch, sum(losses).hex(), len(losses), flush=True)
    dist.destroy_process_group()


main()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ScriptServer(tmp_path_factory.mktemp("runs")) as server:
        yield server


class Ranks(NamedTuple):
    """Runs of the script as several ranks. `port`: claimed for rank 0 of each run."""

    server: ScriptServer
    port: int

    def start(self, size: int, *options: object) -> list[int]:
        (self.server.folder / "train.py").write_text(SCRIPT)
        variables = [rank_variables(rank, size, self.port) | {"GLOO_SOCKET_IFNAME": "lo"} for rank in range(size)]
        return self.server.start_ranks(["-o", "run", *options], variables)

    def run(self, size: int, *options: object, status: int = 0) -> list[Ended]:
        self.start(size, *options)
        ended = self.server.wait_ranks()
        assert [each.status for each in ended] == [status] * size, ended
        return ended

    def steps(self, size: int, *options: object) -> list[list[dict[str, Any]]]:
        """Return the lines of each rank's log of steps."""
        logs = [self.server.folder / f"steps{suffix}" for suffix in ("", *(f".rank-{rank}" for rank in range(1, size)))]
        for log in logs:
            log.unlink(missing_ok=True)
        self.run(size, "--steps-log", logs[0], *options)
        return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


@pytest.fixture
def ranks(tmp_path, server):
    server.folder = tmp_path
    with claimed_ports(1) as port:
        yield Ranks(server, port)


def after(whole: list[list[dict[str, Any]]], first: int) -> list[list[dict[str, Any]]]:
    return [steps[first:] for steps in whole]


def test_every_rank_resumes_equal(ranks):
    """With three ranks, the last bits depend on how DistributedDataParallel has arranged the gradients that it sums."""
    whole = ranks.steps(3, "--at", "0:0,1:2", "train.py")
    assert [len(steps) for steps in whole] == [8, 8, 8]
    assert len({str(steps[-1]["indices"]) for steps in whole}) == 3
    for name, first in (("step-0", 0), ("step-6", 6)):
        assert ranks.steps(3, "--resume", name, "train.py") == after(whole, first)
    assert ranks.steps(3, "--resume", "step-6", "--replay", "replay-data", "train.py") == after(whole, 6)
    document = json.loads((ranks.server.folder / "run" / "run.json").read_text())
    assert (document["ranks"], document["manifest"]["world_size"], document["steps"]) == (3, 3, 8)
    assert document["differs_from_saved"] == []


def test_each_rank_saves_its_part_of_sharded_parameters(ranks):
    whole = ranks.steps(3, "--at", "0:1", "train.py", "--sharded", "--items", "24")
    assert len({steps[-1]["parameters_sha256"] for steps in whole}) == 3
    assert ranks.steps(3, "--resume", "step-1", "train.py", "--sharded", "--items", "24") == after(whole, 1)


def test_a_part_of_a_tensor_that_is_divided_otherwise_is_refused():
    with pytest.raises(IotwinError, match=r"^it was divided as halves, which no tensor of this run is$"):
        decode({"$shard": [torch.ones(1), [2], [1], "halves"]}, [torch.ones(2)])


@pytest.mark.parametrize("workers", [0, 2])
def test_gradients_of_several_batches_resume_equal(ranks, workers):
    """Ranks sum gradients in every third batch only. The step that a resumed run makes twice sums them in any batch."""
    options = ("--determinism", "seeded", "train.py", "--accumulate", "3", "--workers", workers)
    whole = ranks.steps(3, "--at", "0:2,0:3,1:1", *options)
    for name, first in (("step-2", 2), ("step-3", 3), ("step-5", 5)):
        assert ranks.steps(3, "--resume", name, *options) == after(whole, first)


def test_items_draw_the_same_in_any_number_of_ranks(ranks):
    def items(ended: list[Ended]) -> set[str]:
        return {word for each in ended for word in each.out.split() if word.count(":") == 2}

    seeded = ("--determinism", "seeded", "--resume", "never", "train.py", "--show")
    alone = items(ranks.run(1, *seeded))
    assert len(alone) == 96
    assert items(ranks.run(2, *seeded, "--workers", "1")) == alone
    assert items(ranks.run(1, "--resume", "never", "train.py", "--show")) != alone


def test_rank_0_decides_when_to_save(ranks):
    """A signal that only rank 1 gets saves nothing."""
    store = ranks.server.folder / "run" / "checkpoints"
    pids = ranks.start(2, "--every", "1h", "train.py", "--wait", "0.1")
    printed = [ranks.server.folder / name for name in ("out.txt", "out.txt.1")]
    while not all(path.exists() and "step" in path.read_text() for path in printed):
        time.sleep(0.02)
    os.kill(pids[1], signal.SIGUSR1)
    begun = printed[0].read_text().count("step")
    while printed[0].read_text().count("step") < begun + 2:
        time.sleep(0.02)
    assert not checkpoints(store)
    os.kill(pids[0], signal.SIGUSR1)
    assert [each.status for each in ranks.server.wait_ranks()] == [0, 0]
    [found] = checkpoints(store)
    assert found.manifest is not None and (found.manifest.reason, found.manifest.world_size) == ("signal", 2)


def test_ranks_that_are_killed_resume(ranks):
    whole = ranks.run(2, "--resume", "never", "train.py")
    pids = ranks.start(2, "--every", "1batches", "train.py", "--die", "1:2:1")
    while not (ranks.server.folder / "run" / "checkpoints" / "step-8").exists():
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(pids[0], signal.SIGKILL)  # as torchrun does when a rank has failed
    assert [each.status for each in ranks.server.wait_ranks()] == [-signal.SIGKILL] * 2
    resumed = ranks.run(2, "train.py")
    assert [each.out.splitlines()[-1] for each in resumed] == [each.out.splitlines()[-1] for each in whole]
    document = json.loads((ranks.server.folder / "run" / "run.json").read_text())
    assert (document["resumed_from"], document["replay"], document["steps"]) == ("step-8", "restore", 12)


def test_what_does_not_fit_ends_in_one_line(ranks):
    ranks.run(2, "--at", "0:1", "train.py")
    for size, message in ((1, "is of 2 ranks, this run has 1; start 2 of them"), (3, "is of 2 ranks, this run has 3")):
        assert all(message in each.err.splitlines()[-1] for each in ranks.run(size, "train.py", status=1)[:1])
    pids = ranks.start(2, "--resume", "never", "--every", "3batches", "train.py", "--uneven")
    while not (said := (ranks.server.folder / "err.txt.1").read_text()).endswith("\n"):
        time.sleep(0.02)
    os.kill(pids[0], signal.SIGKILL)  # as torchrun does when a rank has failed
    ranks.server.wait_ranks()
    assert "rank 1 is at batch 5 of epoch 0, rank 0 at batch 0 of epoch 1; ranks with different numbers" in said
    alone = ranks.server.run(["train.py"], RANK="2", WORLD_SIZE="2")
    assert (alone.status, len(alone.err.splitlines())) == (2, 1)
    without = ranks.server.run(["train.py"], RANK="1", WORLD_SIZE="2")
    assert without.status == 2 and "start the ranks with torchrun" in without.err.splitlines()[-1]


# Verification


def verified(folder: Path, options: list[str], *arguments: str) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    command, parser = DetrainVerifyCommand(), ArgumentParser()
    command.prepare_parser(parser)
    words = [str(folder / "train.py"), "-o", str(folder / "check"), "--reruns", "1", *options]
    args = parser.parse_args(words)
    args.arguments = list(arguments)
    document = command.run(args).document
    command.show(document)
    return document


def test_ranks_with_loader_workers_resume_equal(tmp_path):
    """Each resumed run is compared with the reference on all ranks."""
    document = verified(tmp_path, ["--ranks", "3", "--resume-at", "0:1,1:0", "--workers", "1"], "--items", "24")
    assert document["equal"] and document["ranks"] == 3
    assert [(each["epoch"], each["batch"]) for each in document["resumes"]] == [(0, 1), (1, 0)]


def test_the_rank_that_differs_is_named(tmp_path, capsys):
    document = verified(tmp_path, ["--ranks", "2", "--resume-at", "0:1", "--drop", "scaler"], "--noise", "1", "--items", "16")
    found = [each["first_difference"] for each in (*document["reruns"], *document["resumes"])]
    assert [(each["step"], each["what"], each["rank"]) for each in found] == [(1, "loss", 1)] * 2
    assert "rerun: differs from step 1 of rank 1 on, first in loss" in capsys.readouterr().out


def test_a_rank_that_fails_is_named(tmp_path):
    with pytest.raises(IotwinError, match=r"must run to its end to be verified, but it failed: rank 1: "):
        verified(tmp_path, ["--ranks", "2"], "--die", "0:1:1")


# What ranks exchange


def together(size: int, run: Any) -> tuple[list[Any], Any]:
    """Return what `run` returns for each of `size` ranks in threads, and their store."""
    store, found = distributed.HashStore(), dict.fromkeys(range(size))

    def rank_of(rank: int) -> None:
        found[rank] = run(ScriptRanks(rank, size, store))

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)], store


def test_ranks_sum_and_take_from_the_first():
    def run(ranks: ScriptRanks) -> list[Any]:
        sums = [ranks.sum(ranks.rank + 0.5, 2), ranks.sum(ranks.rank)]
        return [*sums, ranks.from_first(["a", ranks.rank]), ranks.from_first(None)]

    found, _ = together(3, run)
    assert found == [[[4.5, 6], [3], ["a", 0], None]] * 3
    alone = ScriptRanks()
    assert (alone.sum(1, 2), alone.from_first("a")) == ([1, 2], "a")


def test_the_store_does_not_grow_with_the_run(monkeypatch):
    monkeypatch.setattr(script_ranks, "_KEPT", 8)
    found, store = together(2, lambda ranks: [ranks.from_first(number) for number in range(100)])
    assert found == [list(range(100))] * 2
    assert store.num_keys() < 20


def test_a_rank_that_does_not_come_is_named_in_one_line():
    (store := distributed.HashStore()).set_timeout(timedelta(milliseconds=50))
    with pytest.raises(IotwinError, match=r"^another rank of the script has ended, or does not come to this batch: "):
        ScriptRanks(1, 2, store).from_first(None)


# Gradients' buckets


@pytest.fixture
def keeping(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    keep_groups()


@contextmanager
def process_group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def test_the_group_of_a_model_is_kept(tmp_path, keeping, monkeypatch):
    """Its destructor may wait for ever if the script destroys the group before the model (see `never_destroy`)."""
    monkeypatch.setattr(torch_ranks, "never_destroy", (kept := []).append)
    with process_group(tmp_path):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        assert kept == [model.process_group]


def test_buckets_are_final_after_the_first_summed_gradient(tmp_path, keeping):
    inputs = torch.ones(1, 2)
    with process_group(tmp_path):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        assert not has_final_buckets(torch.nn.Linear(2, 2)) and not has_final_buckets(model)
        with model.no_sync():
            model(inputs).sum().backward()
        assert not has_final_buckets(model)
        sum_each_gradient(always=True)
        with model.no_sync():
            model(inputs).sum().backward()
        sum_each_gradient(always=False)
        assert has_final_buckets(model) and has_final_buckets(model)
        fresh = DistributedDataParallel(torch.nn.Linear(2, 2))
        with fresh.no_sync():
            fresh(inputs).sum().backward()
        assert not has_final_buckets(fresh)
