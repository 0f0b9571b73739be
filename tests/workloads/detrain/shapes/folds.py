"""Trains a new model for each fold: the loop over folds is no loop of epochs, and neither is the one over learning rates."""

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
for lr in (0.1, 0.01):
    for fold in range(2):
        kept = [index for index in range(len(data)) if index % 2 != fold]
        train_loader = DataLoader(Subset(data, kept), batch_size=4)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        stream = iter(train_loader)
        for step in range(4):
            x, y = next(stream)
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
