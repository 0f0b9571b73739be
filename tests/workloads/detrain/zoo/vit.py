"""A vision transformer, trained by a Trainer class that keeps the best weights."""

import argparse
import copy
import math

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    """Images with a bright quadrant, whose position is the label."""

    def __init__(self, n, seed):
        rng = np.random.RandomState(seed)
        self.labels = rng.randint(0, 4, n)
        self.images = rng.randn(n, 3, 16, 16).astype(np.float32) * 0.3
        for image, label in zip(self.images, self.labels):
            row, column = divmod(int(label), 2)
            image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), int(self.labels[i])


class ViT(nn.Module):
    def __init__(self, dim=32, depth=2, heads=2, classes=4):
        super().__init__()
        self.to_patches = nn.Conv2d(3, dim, kernel_size=4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.to_patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.position
        return self.head(self.encoder(x)[:, 0])


class Trainer:
    def __init__(self, model, train_loader, val_loader, lr, epochs):
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.epochs = epochs
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
        total = epochs * len(train_loader)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: self.warmup_cosine(step, total))
        self.best_acc = 0.0
        self.best_weights = None
        self.history = []

    @staticmethod
    def warmup_cosine(step, total, warmup=2):
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    def run_epoch(self):
        self.model.train()
        losses = []
        for images, labels in self.train_loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        correct = total = 0
        for images, labels in self.val_loader:
            correct += (self.model(images).argmax(1) == labels).sum().item()
            total += len(labels)
        return correct / total

    def fit(self):
        for epoch in range(self.epochs):
            loss = self.run_epoch()
            acc = self.validate()
            self.history.append((loss, acc))
            if acc > self.best_acc:
                self.best_acc = acc
                self.best_weights = copy.deepcopy(self.model.state_dict())
            print(f"epoch {epoch}: loss={loss:.6f} acc={acc:.3f} best={self.best_acc:.3f}")
        return self.history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=42)
    opt = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(opt.seed)
    np.random.seed(opt.seed)
    loader = DataLoader(
        Patches(96, 0), batch_size=opt.batch_size, shuffle=True, num_workers=opt.workers,
        persistent_workers=opt.workers > 0, drop_last=True,
    )  # fmt: skip
    val_loader = DataLoader(Patches(32, 1), batch_size=32, shuffle=False)
    Trainer(ViT(), loader, val_loader, opt.lr, opt.epochs).fit()
