"""WebDataset: tar shards through a shuffle buffer; a checkpoint at the end of each epoch, since pipelines have no state."""

import argparse
import os

import torch
import webdataset as wds
from torch import nn

CHECKPOINT = "checkpoint.pt"


def write_shards(folder):
    os.makedirs(folder, exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    for shard in range(4):
        with wds.TarWriter(f"{folder}/shard-{shard}.tar") as out:
            for k in range(10):
                x = torch.randn(4, generator=generator)
                out.write({"__key__": f"{shard}{k:02d}", "x.pth": x, "y.cls": int(x.sum() > 0)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    if not os.path.isdir("shards"):
        write_shards("shards")

    dataset = wds.WebDataset("shards/shard-{0..3}.tar", shardshuffle=4, seed=9).shuffle(20, seed=9)
    dataset = dataset.decode().to_tuple("x.pth", "y.cls").batched(8)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first_epoch = 0
    if args.resume and os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]

    for epoch in range(first_epoch, args.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.6f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)


if __name__ == "__main__":
    main()
