"""Wraps the optimizer in a class that also sets the learning rate."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class ScheduledOptim:
    def __init__(self, inner, size):
        self.inner, self.size, self.count = inner, size, 0

    def step(self):
        self.count += 1
        for group in self.inner.param_groups:
            group["lr"] = min(self.count**-0.5, self.count * self.size**-1.5)
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad()


class Loss:
    def __init__(self, criterion, optimizer):
        self.criterion, self.optimizer = criterion, optimizer

    def __call__(self, output, target):
        loss = self.criterion(output, target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
loss_compute = Loss(torch.nn.MSELoss(), ScheduledOptim(torch.optim.Adam(model.parameters()), 4))
train_iter = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8)
for epoch in range(2):
    total = 0.0
    for x, y in train_iter:
        total += loss_compute(model(x), y)
