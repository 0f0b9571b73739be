"""Passes over several data sets in each epoch, one after the other."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loaders = {name: DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=8) for name in ("red", "green")}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for name, loader in loaders.items():
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
