"""Click prediction with EmbeddingBag tables, in a loop that counts steps up to a maximum and restarts its iterator."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TABLES, ROWS, BAG = 3, 50, 4


def write_clicks(path, count=72):
    rng = np.random.RandomState(11)
    record = np.dtype([("dense", "f4", 5), ("sparse", "i8", (TABLES, BAG)), ("click", "f4")])
    clicks = np.zeros(count, record)
    clicks["dense"] = rng.randn(count, 5)
    clicks["sparse"] = rng.randint(0, ROWS, (count, TABLES, BAG))
    clicks["click"] = clicks["dense"].sum(1) + (clicks["sparse"][:, 0] < ROWS // 2).sum(1) - 2 > 0
    np.save(path + ".part.npy", clicks)
    os.replace(path + ".part.npy", path)


class Clicks(Dataset):
    def __init__(self, path):
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return np.array(row["dense"]), np.array(row["sparse"]), np.float32(row["click"])


class Recommender(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, dim))
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, dim, mode="sum") for _ in range(TABLES))
        self.top = nn.Sequential(nn.Linear(dim + (TABLES + 1) * TABLES // 2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        vectors = [x] + [table(sparse[:, k]) for k, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        return self.top(torch.cat([x, products[:, i, j]], dim=1)).squeeze(1)


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


parser = argparse.ArgumentParser()
parser.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "toy_clicks"))
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=12)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--seed", type=int, default=123)


def main():
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    os.makedirs(args.data, exist_ok=True)
    path = os.path.join(args.data, "clicks.npy")
    if not os.path.exists(path):
        write_clicks(path)
    loader = DataLoader(Clicks(path), batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    model = Recommender()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    criterion = nn.BCEWithLogitsLoss()
    losses = AverageMeter()

    max_steps = args.epochs * len(loader)
    global_step = 0
    batches = iter(loader)
    while global_step < max_steps:
        try:
            dense, sparse, click = next(batches)
        except StopIteration:
            batches = iter(loader)
            dense, sparse, click = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(dense, sparse), click)
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(click))
        global_step += 1
        if global_step % len(loader) == 0:
            print(f"step {global_step}/{max_steps}: loss {losses.avg:.6f}")
            losses.reset()


if __name__ == "__main__":
    main()
