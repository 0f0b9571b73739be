"""Training jobs as people write them, with a DataLoader of torch's own; and how they are killed and resumed."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter

import numpy as np
import torch
from torch import nn
from torch.utils import data

from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager
from iotwin.workloads.state.torch_state import weights_sha256

SAMPLES, BATCH, EPOCHS = 40, 4, 3
STEPS = SAMPLES // BATCH  # of an epoch
EVERY = 3  # steps between checkpoints
FORK = multiprocessing.get_context("fork")


class Noisy(data.Dataset):
    """Samples that are augmented by a draw from each global generator."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        drawn = float(torch.rand(())) + random.random() + np.random.rand()
        return torch.full((6,), index / SAMPLES) + 0.1 * drawn, index


class Plain(Noisy):
    def __getitem__(self, index):
        return torch.full((6,), index / SAMPLES), index


class Stream(data.IterableDataset):
    """Every sample once, from as many workers as there are, in an order that each draws, or in their own."""

    def __init__(self, shuffled):
        self.shuffled = shuffled

    def __iter__(self):
        worker = data.get_worker_info()
        mine = torch.arange(SAMPLES)[worker.id :: worker.num_workers] if worker else torch.arange(SAMPLES)
        if self.shuffled:
            mine = mine[torch.randperm(len(mine))]
        for index in mine.tolist():
            yield torch.full((6,), index / SAMPLES) + (0.1 * float(torch.rand(())) if self.shuffled else 0), index


class ByPython(data.Sampler):
    """Shuffles by Python's global generator, or by one of its own; with `hidden` by one that nobody can reach."""

    def __init__(self, own=None, hidden=False):
        self.own, self.hidden = own, hidden

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        order = list(range(SAMPLES))
        (random.Random() if self.hidden else self.own or random).shuffle(order)
        return iter(order)


class ByNumpy(ByPython):
    def __iter__(self):
        return iter(self.own.permutation(SAMPLES).tolist())


class Bucketed(data.Sampler):
    """Batches of neighbours in an order that is drawn anew each epoch."""

    def __len__(self):
        return STEPS

    def __iter__(self):
        for batch in torch.randperm(STEPS).tolist():
            yield list(range(batch * BATCH, (batch + 1) * BATCH))


def _seeded():
    return torch.Generator().manual_seed(9)


def _loader(dataset=Noisy, **options):
    return lambda: data.DataLoader(dataset(), batch_size=options.pop("batch_size", BATCH), **options)


def _sampled(sampler, dataset=Noisy, **options):
    return lambda: data.DataLoader(dataset(), batch_size=BATCH, sampler=sampler(), **options)


_PERSISTENT = {"num_workers": 2, "persistent_workers": True}
WEIGHTS = [1 + index % 5 for index in range(SAMPLES)]
# Each loader by its name. Those of ONCE deliver every sample once an epoch, the others are to draw what they drew.
ONCE = {
    "shuffle": _loader(shuffle=True),
    "shuffle, 2 workers": _loader(shuffle=True, num_workers=2),
    "shuffle, persistent": _loader(shuffle=True, **_PERSISTENT),
    "shuffle, persistent, drawing nothing": _loader(Plain, shuffle=True, **_PERSISTENT),
    "shuffle, seeded": lambda: data.DataLoader(Noisy(), BATCH, shuffle=True, generator=_seeded()),
    "shuffle, seeded, 2 workers": lambda: data.DataLoader(Noisy(), BATCH, shuffle=True, generator=_seeded(), num_workers=2),
    "shuffle, seeded, persistent": lambda: data.DataLoader(Noisy(), BATCH, shuffle=True, generator=_seeded(), **_PERSISTENT),
    "shuffle, drop_last, 2 workers": lambda: data.DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2, drop_last=True),
    "stream": lambda: data.DataLoader(Stream(True), BATCH),
    "stream, 2 workers": lambda: data.DataLoader(Stream(True), BATCH, num_workers=2),
    "stream, persistent": lambda: data.DataLoader(Stream(True), BATCH, **_PERSISTENT),
    "stream, persistent, drawing nothing": lambda: data.DataLoader(Stream(False), BATCH, **_PERSISTENT),
    "stream, seeded, persistent": lambda: data.DataLoader(Stream(True), BATCH, generator=_seeded(), **_PERSISTENT),
    "stream, seeded, 2 workers": lambda: data.DataLoader(Stream(True), BATCH, num_workers=2, generator=_seeded()),
    "sequential": _loader(),
    "subset": _sampled(lambda: data.SubsetRandomSampler(range(SAMPLES))),
    "distributed": _sampled(lambda: data.DistributedSampler(range(SAMPLES), 1, 0, seed=4), num_workers=2),
    "batch sampler": lambda: data.DataLoader(Noisy(), batch_sampler=Bucketed()),
    "batch sampler, 2 workers": lambda: data.DataLoader(Noisy(), batch_sampler=Bucketed(), num_workers=2),
    "python's sampler": _sampled(ByPython, num_workers=2),
    "sampler with its own Random": _sampled(lambda: ByPython(random.Random(3)), num_workers=2),
    "sampler with numpy's generator": _sampled(lambda: ByNumpy(np.random.default_rng(3))),
    "validates between epochs": _loader(shuffle=True),
    "validates between epochs, 2 workers": _loader(shuffle=True, num_workers=2),
    "seeds each epoch": _loader(shuffle=True, num_workers=2),
}
DRAWN = {
    "with replacement": _sampled(lambda: data.RandomSampler(range(SAMPLES), replacement=True)),
    "with replacement, seeded, 2 workers": _sampled(
        lambda: data.RandomSampler(range(SAMPLES), replacement=True, generator=_seeded()), num_workers=2
    ),
    "weighted, 2 workers": _sampled(lambda: data.WeightedRandomSampler(WEIGHTS, SAMPLES), num_workers=2),
    "weighted, seeded": _sampled(lambda: data.WeightedRandomSampler(WEIGHTS, SAMPLES, generator=_seeded())),
}
LOADERS = {**ONCE, **DRAWN}
# What cannot be resumed within an epoch after the first, and the line that says so.
REFUSED = {
    "hidden": (_sampled(lambda: ByPython(hidden=True)), "is not the one that the interrupted job took"),
    "stream, persistent, drop_last": (
        lambda: data.DataLoader(Stream(True), BATCH, drop_last=True, **_PERSISTENT),
        "draws random numbers in persistent workers",
    ),
    "out of order": (_loader(shuffle=True, num_workers=2, in_order=False), "in_order=False"),
}


def train(name, make_loader, store, log, killed_at=0, workers_of_checkpoints="thread"):
    """Train, from what `store` holds on; write each step's samples into `log`, then the weights' digest."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = make_loader()
    validation = data.DataLoader(Plain(), batch_size=BATCH)
    with CFManager(store, CFCheckpoint(model=model, optimizer=optimizer)) as manager, log.open("w") as lines:
        manager.worker = workers_of_checkpoints
        batches = CFIterator(loader, bs=BATCH, dali=False, chk_freq=EVERY, cf_manager=manager)
        batches.load_state_dict(manager.restore())
        for epoch in range(batches.epoch, EPOCHS):
            if name == "distributed":
                loader.sampler.set_epoch(epoch)
            if name == "seeds each epoch":
                torch.manual_seed(epoch)
            for inputs, indices in batches:
                optimizer.zero_grad()
                model(inputs).pow(2).mean().backward()
                optimizer.step()
                steps = batches.state_dict()["steps_so_far"]
                print(epoch, steps, *indices.tolist(), file=lines, flush=True)
                if steps == killed_at:
                    manager.wait()  # so that it is known from where the next one goes on
                    os.kill(os.getpid(), signal.SIGKILL)
            if name.startswith("validates"):
                with torch.no_grad():
                    assert sum(len(indices) for _, indices in validation) == SAMPLES
        print(json.dumps(weights_sha256([model])), file=lines)


def run(folder, name, make_loader, killed_at=0, store="store"):
    """Run a job in a process of its own; return its lines, its weights (None if it was killed) and what it said."""
    log, said = folder / f"{store}.log", folder / f"{store}.err"

    def child():
        sys.stderr = said.open("w", buffering=1)
        train(name, make_loader, folder / store, log, killed_at)

    process = FORK.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode in ((-signal.SIGKILL,) if killed_at else (0, 1)), said.read_text()
    lines = [
        json.loads(line) if line.startswith('"') else [int(word) for word in line.split()]
        for line in log.read_text().splitlines()
    ]
    weights = lines.pop() if lines and isinstance(lines[-1], str) else None
    return lines, weights, said.read_text()


def killed_and_resumed(folder, name, make_loader, killed_at, store="store"):
    """Kill a job at a step and resume it; return all lines that count, the weights and what the resumed one said."""
    before, _, _ = run(folder, name, make_loader, killed_at, store)
    after, weights, said = run(folder, name, make_loader, 0, store)
    first = after[0][1] if after else STEPS * EPOCHS + 1
    return [line for line in before if line[1] < first] + after, weights, said


def often(lines):
    """Return how often each sample of each epoch was taken."""
    return Counter((epoch, index) for epoch, _, *indices in lines for index in indices)


ONCE_EACH = Counter(itertools.product(range(EPOCHS), range(SAMPLES)))
