"""Validates within the batch loop, and after each epoch; a function called train_metrics only evaluates."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
train_loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train_metrics(epochs=1):
    for epoch in range(epochs):
        for train_x, train_y in train_loader:
            with torch.no_grad():
                (model(train_x) - train_y).abs().mean()


train_metrics()
for epoch in range(2):
    for step, (x, y) in enumerate(train_loader):
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        if step % 2 == 1:
            total = 0.0
            for vx, vy in val_loader:
                with torch.no_grad():
                    total += (model(vx) - vy).pow(2).mean().item()
    train_metrics()
