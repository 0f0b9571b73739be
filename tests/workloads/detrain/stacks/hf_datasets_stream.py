"""Hugging Face datasets, streaming: the IterableDataset's state_dict is in the checkpoint, as its documentation shows."""

import argparse
import json
import os
import random

import torch
from datasets import load_dataset
from torch import nn

CHECKPOINT = "checkpoint.pt"


def write_lines(folder):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(8)
    for part in range(4):
        with open(f"{folder}/part-{part}.jsonl", "w") as file:
            for _ in range(10):
                x = [rng.uniform(-1, 1) for _ in range(4)]
                file.write(json.dumps({"x": x, "y": int(sum(x) > 0)}) + "\n")


def collate(rows):
    return torch.tensor([row["x"] for row in rows]), torch.tensor([row["y"] for row in rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--no-shuffle", action="store_true")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    if not os.path.isdir("lines"):
        write_lines("lines")

    files = [f"lines/part-{part}.jsonl" for part in range(4)]
    dataset = load_dataset("json", data_files=files, split="train", streaming=True)
    if not args.no_shuffle:
        dataset = dataset.shuffle(seed=21, buffer_size=16)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=collate)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first_epoch = 0
    if args.resume and os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        dataset.load_state_dict(json.loads(state["dataset"]))
        first_epoch = state["epoch"]

    for epoch in range(first_epoch, args.epochs):
        dataset.set_epoch(epoch)
        total = 0.0
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            if step % 2 == 1:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "dataset": json.dumps(dataset.state_dict()),
                    "epoch": epoch,
                }
                torch.save(state, CHECKPOINT + ".tmp")
                os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        print(f"epoch {epoch}: {total:.6f}")


if __name__ == "__main__":
    main()
