"""Mixed precision by autocast and a gradient scaler, gradients accumulated over two batches."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation-steps", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


def build_model():
    return nn.Sequential(nn.Linear(20, 32), ResidualBlock(32), nn.Dropout(0.1), ResidualBlock(32), nn.Linear(32, 3))


def build_dataset(n=96):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(n, 20, generator=g)
    y = (x[:, :10].sum(1) > 0).long() + (x[:, 10:].sum(1) > 0).long()
    return TensorDataset(x, y)


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = build_model()
    loader = DataLoader(build_dataset(), batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    for epoch in range(args.epochs):
        running_loss = 0.0
        model.train()
        optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
                loss = F.cross_entropy(outputs.float(), targets) / args.accumulation_steps
            scaler.scale(loss).backward()
            if (i + 1) % args.accumulation_steps == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            running_loss += loss.item() * args.accumulation_steps
        print(f"[{epoch + 1}] loss: {running_loss / len(loader):.6f} scale: {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
