"""Gets batches by an assignment expression in the header of a while loop."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        x, y = batch
        optimizer.zero_grad()
        torch.nn.functional.l1_loss(model(x), y).backward()
        optimizer.step()
