"""Training on a folder of JPEGs as torchvision's ImageFolder does (a class a folder, an image a sample): to test fit on."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--workers", type=int, default=2)
arguments = parser.parse_args()
torch.set_num_threads(1)


class ImageFolder(Dataset):
    def __init__(self, root: Path) -> None:
        self.files = sorted(path for folder in root.iterdir() for path in folder.iterdir())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with self.files[index].open("rb") as file:
            image = Image.open(file).convert("L").resize((32, 32))
        return torch.from_numpy(np.asarray(image, dtype=np.float32)), index % 2


def log(key: str) -> None:
    now = time.time_ns()
    print(":::MLLOG " + json.dumps({"key": key, "time_ms": now // 10**6, "time_ns": now, "metadata": {}}), flush=True)


log("init_start")
network = torch.nn.Linear(1024, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.01)
data = ImageFolder(arguments.data)
log("init_stop")
for _ in range(arguments.epochs):
    log("epoch_start")
    for images, labels in DataLoader(data, arguments.batch, shuffle=True, num_workers=arguments.workers, drop_last=True):
        loss = torch.nn.functional.cross_entropy(network(images.flatten(1) / 255), labels)
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    log("epoch_stop")
