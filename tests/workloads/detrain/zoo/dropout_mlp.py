"""A perceptron with much dropout, on tabular data; the learning rate follows one cycle, batch by batch; weights are averaged."""

import argparse
import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset, random_split


def parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=14)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--max-lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=2024)
    return parser.parse_args(argv)


def table(rows=110):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(rows, 12, generator=generator)
    y = (x[:, 0] * x[:, 1] + x[:, 2] - 0.5 * x[:, 3] ** 2 > 0).float()
    return TensorDataset(x, y)


def mlp(width=64):
    return nn.Sequential(
        nn.Dropout(0.2),
        nn.Linear(12, width), nn.BatchNorm1d(width), nn.SiLU(), nn.Dropout(0.5),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.SiLU(), nn.AlphaDropout(0.3),
        nn.Linear(width, 1), nn.Flatten(0),
    )  # fmt: skip


def main(argv=None):
    args = parse(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    train_set, valid_set = random_split(table(), [84, 26])
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    valid_loader = DataLoader(valid_set, batch_sampler=BatchSampler(SequentialSampler(valid_set), 26, drop_last=False))

    model = mlp()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    loss_fn = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.max_lr)
    schedule = OneCycleLR(optimizer, args.max_lr, epochs=args.epochs, steps_per_epoch=len(train_loader))

    train_losses, valid_losses = [], []
    best = float("inf")
    for epoch in range(args.epochs):
        running = 0.0
        model.train()
        for xb, yb in train_loader:
            loss = loss_fn(model(xb), yb)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            ema.update_parameters(model)
            running += loss.item()
        train_losses.append(running / len(train_loader))

        ema.eval()
        with torch.no_grad():
            valid_losses.append(sum(loss_fn(ema(xb), yb).item() for xb, yb in valid_loader) / len(valid_loader))
        best = min(best, valid_losses[-1])
        print(f"Epoch {epoch + 1}/{args.epochs} - train {train_losses[-1]:.6f} - valid {valid_losses[-1]:.6f} - best {best:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
