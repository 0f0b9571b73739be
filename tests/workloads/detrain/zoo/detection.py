"""Detector-like training: images with different numbers of boxes, a collate function that keeps lists, several losses."""

import argparse
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Boxes(Dataset):
    def __init__(self, count=40, size=32):
        self.items = []
        generator = torch.Generator().manual_seed(3)
        for _ in range(count):
            n = int(torch.randint(1, 5, (1,), generator=generator))
            corner = torch.randint(0, size - 10, (n, 2), generator=generator)
            extent = torch.randint(4, 10, (n, 2), generator=generator)
            labels = torch.randint(1, 4, (n,), generator=generator)
            image = torch.rand(3, size, size, generator=generator) * 0.2
            for (x, y), (w, h), label in zip(corner.tolist(), extent.tolist(), labels.tolist()):
                image[label - 1, y : y + h, x : x + w] += 0.8
            self.items.append((image, {"boxes": torch.cat([corner, corner + extent], 1).float(), "labels": labels}))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        image, target = self.items[idx]
        if torch.rand(1).item() < 0.5:  # random flip, of the boxes too
            image = image.flip(-1)
            boxes = target["boxes"].clone()
            boxes[:, [0, 2]] = image.shape[-1] - boxes[:, [2, 0]]
            target = {**target, "boxes": boxes}
        return image, target


def collate_fn(batch):
    return tuple(zip(*batch))


class Detector(nn.Module):
    """A grid of cells; each cell predicts a class and a box."""

    def __init__(self, cells=8, classes=4):
        super().__init__()
        self.cells = cells
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        )  # fmt: skip
        self.cls = nn.Conv2d(16, classes, 1)
        self.box = nn.Conv2d(16, 4, 1)

    def forward(self, images, targets):
        features = self.backbone(torch.stack(images))
        scores, boxes = self.cls(features), self.box(features)
        wanted = torch.zeros(len(images), self.cells, self.cells, dtype=torch.long)
        box_loss = torch.zeros(())
        for i, target in enumerate(targets):
            centre = (target["boxes"][:, :2] + target["boxes"][:, 2:]) / 2
            column, row = (centre / 4).long().clamp(0, self.cells - 1).T
            wanted[i, row, column] = target["labels"]
            box_loss = box_loss + F.smooth_l1_loss(boxes[i, :, row, column].T, target["boxes"] / 32)
        return {"loss_cls": F.cross_entropy(scores, wanted), "loss_box": box_loss / len(images)}


class SmoothedValue:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def __str__(self):
        return f"{self.total / max(1, self.count):.6f}"


def train_one_epoch(model, optimizer, data_loader, epoch):
    model.train()
    meters = defaultdict(SmoothedValue)
    lr_scheduler = None
    if epoch == 0:
        warmup_iters = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0 / 10, total_iters=warmup_iters)
    for images, targets in data_loader:
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        meters["loss"].update(losses.item())
        for name, loss in loss_dict.items():
            meters[name].update(loss.item())
    return meters


def main(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dataset = Boxes()
    sampler = RandomSampler(dataset)
    data_loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, collate_fn=collate_fn
    )
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        meters = train_one_epoch(model, optimizer, data_loader, epoch)
        print(f"Epoch: [{epoch}] " + "  ".join(f"{name}: {meter}" for name, meter in meters.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--batch-size", "-b", default=8, type=int)
    parser.add_argument("--workers", "-j", default=0, type=int)
    parser.add_argument("--lr", default=0.05, type=float)
    parser.add_argument("--seed", default=5, type=int)
    main(parser.parse_args())
