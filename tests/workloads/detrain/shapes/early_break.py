"""Leaves both loops early."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(max_steps=7):
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    steps = 0
    while True:
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps >= max_steps:
                break
        else:
            continue
        break
    return steps


torch.manual_seed(1)
assert train() == 7
