"""PyTorch's own recipe: a checkpoint at the end of each epoch, of weights, optimizer and epoch, loaded by --resume."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def save_checkpoint(state, filename="checkpoint.pth.tar"):
    torch.save(state, filename)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--workers", default=0, type=int)
    parser.add_argument("--batch-size", default=8, type=int)
    parser.add_argument("--seed", default=None, type=int)
    parser.add_argument("--resume", default="", type=str, metavar="PATH", help="path to latest checkpoint")
    args = parser.parse_args()
    if args.seed is not None:
        torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=generator)
    dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)

    start_epoch = 0
    if args.resume:
        if os.path.isfile(args.resume):
            checkpoint = torch.load(args.resume)
            start_epoch = checkpoint["epoch"]
            model.load_state_dict(checkpoint["state_dict"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scheduler.load_state_dict(checkpoint["scheduler"])
            print(f"=> loaded checkpoint '{args.resume}' (epoch {start_epoch})")
        else:
            print(f"=> no checkpoint found at '{args.resume}'")

    for epoch in range(start_epoch, args.epochs):
        total = 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch} loss {total / len(loader):.6f}")
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
        )


if __name__ == "__main__":
    main()
