"""MosaicML streaming: StreamingDataLoader's state_dict is in the checkpoint, as its documentation shows."""

import argparse
import os

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch import nn

CHECKPOINT = "checkpoint.pt"


def write_shards(folder):
    rng = np.random.default_rng(6)
    with MDSWriter(out=folder, columns={"x": "ndarray:float32:4", "y": "int"}, size_limit=400) as out:
        for _ in range(40):
            x = rng.normal(size=4).astype(np.float32)
            out.write({"x": x, "y": int(x.sum() > 0)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(4)
    torch.set_num_threads(1)
    if not os.path.isdir("shards"):
        write_shards("shards")

    clean_stale_shared_memory()
    dataset = StreamingDataset(local="shards", shuffle=True, shuffle_seed=17, batch_size=8, num_canonical_nodes=1)
    dataloader = StreamingDataLoader(dataset, batch_size=8, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first_epoch = 0
    if args.resume and os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        dataloader.load_state_dict(state["dataloader"])
        first_epoch = state["epoch"]

    for epoch in range(first_epoch, args.epochs):
        for step, batch in enumerate(dataloader):
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 2 == 1:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "dataloader": dataloader.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, CHECKPOINT + ".tmp")
                os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        print(f"epoch {epoch}: {loss.item():.6f}")


if __name__ == "__main__":
    main()
