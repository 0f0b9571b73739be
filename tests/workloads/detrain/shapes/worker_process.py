"""Trains in a function that a thread runs, with arguments as a tuple."""

import threading

import torch
from torch.utils.data import DataLoader, TensorDataset


def worker(rank, loader, epochs):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for batch_idx, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(1)
    train_loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8)
    thread = threading.Thread(target=worker, args=(0, train_loader, 2))
    thread.start()
    thread.join()
