"""Trains on the first batches of each epoch only."""

from itertools import islice

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
model = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for x, y in islice(loader, 3):
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
