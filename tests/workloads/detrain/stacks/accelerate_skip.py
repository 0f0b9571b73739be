"""Accelerate: save_state every two steps; resumed by load_state and skip_first_batches, as its documentation shows."""

import argparse
import os

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seedable", action="store_true", help="use_seedable_sampler=True")
    parser.add_argument("--stateful", action="store_true", help="use_stateful_dataloader=True")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(42)
    config = DataLoaderConfiguration(use_seedable_sampler=args.seedable, use_stateful_dataloader=args.stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    x = torch.randn(40, 4)
    train_dataloader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), shuffle=True, batch_size=8, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(model, optimizer, train_dataloader, lr_scheduler)

    overall_step, starting_epoch, resume_step = 0, 0, None
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        overall_step = int(os.path.basename(args.resume_from_checkpoint).replace("step_", ""))
        starting_epoch = overall_step // len(train_dataloader)
        resume_step = overall_step - starting_epoch * len(train_dataloader)

    for epoch in range(starting_epoch, args.num_epochs):
        model.train()
        if resume_step is not None and epoch == starting_epoch and not args.stateful:
            active_dataloader = accelerator.skip_first_batches(train_dataloader, resume_step)
        else:
            active_dataloader = train_dataloader
        for inputs, targets in active_dataloader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % 2 == 0:
                accelerator.save_state(f"step_{overall_step}")
        print(f"epoch {epoch}: {loss.item():.6f}")


if __name__ == "__main__":
    main()
