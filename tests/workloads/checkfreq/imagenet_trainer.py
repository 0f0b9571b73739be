"""A trainer in the shape of the original's, as a script that imports cf_checkpoint, cf_manager and cf_iterator by their names.

It uses the library where and as the original does, with a DataLoader in place of DALI's pipeline and a small network.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from cf_checkpoint import CFCheckpoint
from cf_iterator import CFIterator
from cf_manager import CFManager, CFMode
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, SIDE, CLASSES = 60, 8, 3


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("-a", "--arch", default="resnet18")
    parser.add_argument("-b", "--batch-size", type=int, default=6)
    parser.add_argument("-j", "--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--start-epoch", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--steps_per_run", type=int, default=-1)
    parser.add_argument("--iters", type=int, default=-1)
    parser.add_argument("--chk-freq", type=int, default=0)
    parser.add_argument("--chk-prefix", default="./")
    for flag in ("--resume", "--cf_iterator", "--chk_mode_baseline", "--persist", "--dynamic", "--noeval"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def data(samples):
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(samples) % CLASSES
    images = torch.randn(samples, 3, SIDE, SIDE, generator=generator) + labels[:, None, None, None]
    return TensorDataset(images, labels)


def main():
    args = arguments()
    torch.manual_seed(args.local_rank)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    chk = CFCheckpoint(model=model, optimizer=optimizer)
    mode = CFMode.MANUAL if args.chk_mode_baseline else CFMode.AUTO
    cf_manager = CFManager(args.chk_prefix, chk, mode=mode)

    start_index, extra_state = 0, None
    if args.resume:
        extra_state = cf_manager.restore(gpu=0)
        if extra_state is not None:
            args.start_epoch, start_index = extra_state["epoch"], extra_state["start_index"]
            print(f"populated: {args.start_epoch} {start_index} {extra_state['steps_so_far']}")
    train_loader = DataLoader(data(SAMPLES), batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    if args.cf_iterator:
        train_loader = CFIterator(
            train_loader, worker_id=args.local_rank, bs=args.batch_size, steps_this_epoch=int(start_index / args.batch_size),
            epoch=args.start_epoch, dali=False, cf_manager=cf_manager, chk_freq=args.chk_freq, arch=args.arch,
            steps_to_run=args.steps_per_run, persist=args.persist, dynamic=args.dynamic,
        )  # fmt: skip
        if args.resume:
            train_loader.load_state_dict(extra_state)
    val_loader = DataLoader(data(SAMPLES // 2), batch_size=args.batch_size)

    with Path("time-split0.csv").open("w") as rows:
        for epoch in range(args.start_epoch, args.epochs):
            train(train_loader, model, optimizer, epoch, rows, cf_manager, args)
            if not args.noeval:
                print(f"top1 {validate(val_loader, model):.3f}")
            if args.cf_iterator and train_loader.exit:
                break
            train_loader.reset()
    if args.local_rank == 0 and cf_manager.chk_process is not None:
        cf_manager.chk_process.join()
    digest = sum(value.double().sum().item() for value in chk.tracking_map["model"].state_dict().values())
    print(f"weights {digest!r} latest {cf_manager.get_latest_checkpoint(latest=True, epoch=0)}")


def train(train_loader, model, optimizer, epoch, rows, cf_manager, args):
    model.train()
    end = time.time()
    for step, (images, target) in enumerate(train_loader):
        length = math.ceil(train_loader._size / args.batch_size)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (1 + epoch) / 5)
        loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        cf_manager.weight_update()
        rows.write(f"{epoch},{step}/{length},{time.time() - end}\n")
        end = time.time()
        if 0 < args.iters == step:
            break


def validate(val_loader, model):
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == target).sum().item() for images, target in val_loader)
    return right / len(val_loader.dataset)


if __name__ == "__main__":
    main()
