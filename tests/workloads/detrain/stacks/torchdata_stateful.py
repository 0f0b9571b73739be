"""torchdata's StatefulDataLoader: its state_dict is in the checkpoint, as its documentation shows."""

import argparse
import os

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

CHECKPOINT = "checkpoint.pt"


class Squares(torch.utils.data.Dataset):
    def __init__(self, n=40):
        self.x = torch.linspace(-1, 1, n).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.01 * torch.randn(1), self.x[index] ** 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rng", action="store_true", help="save PyTorch's generator too")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)

    dataloader = StatefulDataLoader(Squares(), batch_size=8, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first_epoch, state = 0, None
    if args.resume and os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        dataloader.load_state_dict(state["dataloader"])
        first_epoch = state["epoch"]

    for epoch in range(first_epoch, args.epochs):
        batches = iter(dataloader)  # draws a seed for workers
        if args.rng and args.resume and epoch == first_epoch and state:
            torch.set_rng_state(state["rng"])
        for step, (x, y) in enumerate(batches):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 2 == 1:
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "dataloader": dataloader.state_dict(),
                        "epoch": epoch,
                        "rng": torch.get_rng_state(),
                    },
                    CHECKPOINT + ".new",
                )
                os.replace(CHECKPOINT + ".new", CHECKPOINT)
        print(f"epoch {epoch}: {loss.item():.6f}")


if __name__ == "__main__":
    main()
