"""A small training job on the library, whose end tells every sample it took and every bit of what it learned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from iotwin.workloads.checkfreq.batches import CFBatches
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager, CFMode
from iotwin.workloads.state.torch_state import weights_sha256

SAMPLES, BATCH = 24, 4


class Numbers(Dataset):
    """Vectors that are functions of their index; `read` are those that were asked for."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.read.append(index)
        return torch.full((6,), index / SAMPLES), index


def network(width=6):
    """With all that trips checkpoints up: dropout, running means, a scalar buffer."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 1))


def optimizer_of(model, kind="adam"):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


class Job:
    def __init__(self, store, mode=CFMode.AUTO, chk_freq=0, kind="adam", workers=0, manager=None, **options):
        self.model = network()
        self.optimizer = optimizer_of(self.model, kind)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        checkpoint = CFCheckpoint(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        self.manager = CFManager(store, checkpoint, mode=mode, **(manager or {}))
        self.batches = CFBatches(SAMPLES, BATCH, seed=3)
        self.data = Numbers()
        loader = DataLoader(self.data, batch_sampler=self.batches, num_workers=workers)
        self.iterator = CFIterator(loader, bs=BATCH, dali=False, chk_freq=chk_freq, cf_manager=self.manager, **options)
        self.taken = []  # (epoch, index)
        if (left := self.manager.restore()) is not None:
            self.iterator.load_state_dict(left)
        self.resumed_step = self.manager.restored_from["step"] if self.manager.restored_from else 0

    def train(self, epochs=3):
        while self.iterator.epoch < epochs and not self.iterator.exit:
            epoch = self.iterator.epoch
            for inputs, indices in self.iterator:
                self.taken += [(epoch, index) for index in indices.tolist()]
                self.optimizer.zero_grad()
                self.model(inputs).pow(2).mean().backward()
                self.optimizer.step()
                self.scheduler.step()
        return self

    def close(self):
        self.manager.close()
        return self

    @property
    def digest(self):
        state = self.optimizer.state_dict()["state"]
        moments = [value.double().sum().item() for values in state.values() for value in values.values() if value is not None]
        return weights_sha256([self.model]), moments, torch.get_rng_state().tolist(), self.scheduler.state_dict()["last_epoch"]
