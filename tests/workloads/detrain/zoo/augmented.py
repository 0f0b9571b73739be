"""Images that are cropped, flipped and coloured anew each time, with random numbers of torch, numpy and python."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(iterable, **_):
        return iterable


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomCrop:
    def __init__(self, size, padding):
        self.size, self.padding = size, padding

    def __call__(self, image):
        image = F.pad(image, [self.padding] * 4)
        top = torch.randint(0, image.shape[1] - self.size + 1, ()).item()
        left = torch.randint(0, image.shape[2] - self.size + 1, ()).item()
        return image[:, top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __call__(self, image):
        return image.flip(-1) if random.random() < 0.5 else image


class ColorJitter:
    def __init__(self, strength=0.3):
        self.strength = strength

    def __call__(self, image):
        factor = np.random.uniform(1 - self.strength, 1 + self.strength, size=(3, 1, 1)).astype(np.float32)
        return (image * torch.from_numpy(factor)).clamp(0, 1)


class RandomErasing:
    def __call__(self, image):
        if np.random.rand() < 0.25:
            y, x = random.randrange(12), random.randrange(12)
            image = image.clone()
            image[:, y : y + 4, x : x + 4] = torch.rand(3, 1, 1)
        return image


class Stripes(Dataset):
    def __init__(self, n, transform=None):
        rng = np.random.RandomState(21)
        self.labels = rng.randint(0, 3, n)
        self.images = rng.rand(n, 3, 16, 16).astype(np.float32) * 0.5
        for image, label in zip(self.images, self.labels):
            image[:, :: label + 2] += 0.5
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


def mixup(images, labels, alpha=0.2):
    lam = float(np.random.beta(alpha, alpha))
    other = torch.randperm(len(images))
    return lam * images + (1 - lam) * images[other], labels, labels[other], lam


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=3407)
    cfg = parser.parse_args()

    torch.set_num_threads(1)
    seed_everything(cfg.seed)
    transform = Compose(RandomCrop(16, padding=2), RandomHorizontalFlip(), ColorJitter(), RandomErasing())
    loader = DataLoader(Stripes(90, transform), batch_size=cfg.batch_size, shuffle=True, num_workers=cfg.workers)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(32, 3),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs)

    for epoch in range(cfg.epochs):
        net.train()
        running_loss = 0.0
        for images, labels in tqdm(loader, disable=True):
            images, labels_a, labels_b, lam = mixup(images, labels)
            outputs = net(images)
            loss = lam * F.cross_entropy(outputs, labels_a) + (1 - lam) * F.cross_entropy(outputs, labels_b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        scheduler.step()
        print(f"Epoch {epoch}: loss {running_loss / len(loader):.6f}, lr {scheduler.get_last_lr()[0]:.5f}")


if __name__ == "__main__":
    main()
