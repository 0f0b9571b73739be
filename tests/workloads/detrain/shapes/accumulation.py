"""Accumulates the gradients of several batches, and steps a scheduler with each update."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 1)), batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
ACCUMULATION = 3
for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean() / ACCUMULATION
        loss.backward()
        if (i + 1) % ACCUMULATION == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
