"""Trains twice, by different loops: either of them could be meant."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).abs().mean().backward()
        optimizer.step()
