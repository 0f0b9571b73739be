"""A small training script with random items, dropout, momentum and a schedule; one module is not trained.

With the argument `scaled`, its gradients are scaled.
"""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index / 12, random.random()]), index % 2


def main():
    if "fail" in sys.argv:
        raise ValueError("on request")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3, enabled="scaled" in sys.argv)
    unused = nn.Linear(2, 2)  # noqa: F841  # not trained
    loader = DataLoader(Points(), batch_size=3, shuffle=True)
    for _ in range(2):
        for x, label in loader:
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
    print("the end of", *sys.argv[1:])


if __name__ == "__main__":
    main()
