"""A checkpoint every two batches with all that later steps depend on, written beside the old one, synced and renamed."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoints/latest.pt"


class Order:
    """A sampler whose order is a function of the epoch, and which can begin anywhere in it."""

    def __init__(self, count):
        self.count, self.epoch, self.begin = count, 0, 0

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        begin, self.begin = self.begin, 0
        return iter(order.tolist()[begin:])

    def __len__(self):
        return self.count - self.begin


def save(state):
    os.makedirs(os.path.dirname(CHECKPOINT), exist_ok=True)
    with open(CHECKPOINT + ".tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(CHECKPOINT + ".tmp", CHECKPOINT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--drop-rng", action="store_true", help="do not restore the generator, to see what it changes")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    inputs = torch.randn(40, 6)
    sampler = Order(len(inputs))
    loader = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, sampler=sampler, num_workers=args.workers
    )
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    epoch, done, history, rng = 0, 0, [], None
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch, done, history, rng = state["epoch"], state["done"], state["history"], state["rng"]

    while epoch < args.epochs:
        sampler.epoch, sampler.begin = epoch, 8 * done
        batches = iter(loader)  # draws a seed for the workers
        if rng is not None and not args.drop_rng:
            torch.set_rng_state(rng)
        rng = None
        for x, y in batches:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            history.append(loss.item())
            if done % 2 == 0:
                save(
                    {
                        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "done": done,
                        "history": history, "rng": torch.get_rng_state(),
                    }
                )  # fmt: skip
        print(f"epoch {epoch}: {history[-1]:.6f}")
        epoch, done = epoch + 1, 0


if __name__ == "__main__":
    main()
