"""Binds the arguments of the step by functools.partial, and passes the step to the function with the loops."""

from functools import partial

import torch
from torch.utils.data import DataLoader, TensorDataset


def train_step(model, optimizer, loss_fn, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def run(loader, step, epochs):
    for epoch in range(epochs):
        for batch in loader:
            step(batch=batch)


torch.manual_seed(1)
net = torch.nn.Linear(4, 1)
one_step = partial(train_step, net, torch.optim.SGD(net.parameters(), lr=0.05), loss_fn=torch.nn.MSELoss())
run(DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8), one_step, epochs=2)
