"""A checkpoint every two batches; --resume passes over the batches of its epoch that were trained on. No generator is saved."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "last.pt"


def save(model, optimizer, epoch, batch):
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "batch": batch}, CHECKPOINT + ".tmp"
    )
    os.replace(CHECKPOINT + ".tmp", CHECKPOINT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    inputs = torch.randn(40, 6)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first_epoch = first_batch = 0
    if args.resume and os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, first_batch = state["epoch"], state["batch"]

    for epoch in range(first_epoch, args.epochs):
        for batch, (x, y) in enumerate(loader):
            if epoch == first_epoch and batch < first_batch:
                continue
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch % 2 == 1:
                save(model, optimizer, epoch, batch + 1)
        print(f"epoch {epoch}: {loss.item():.6f}")


if __name__ == "__main__":
    main()
