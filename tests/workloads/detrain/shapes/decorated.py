"""Decorates the functions that train."""

import functools
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        begin = time.perf_counter()
        for _ in range(1):
            result = function(*args, **kwargs)
        return result, time.perf_counter() - begin

    return wrapper


def retried(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    return decorate


@timed
def run_epoch(model, loader, optimizer):
    for x, y in loader:
        train_step(model, (x, y), optimizer)


@retried(times=3)
def train_step(model, batch, optimizer):
    x, y = batch
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


@torch.enable_grad()
def main():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        run_epoch(model, loader, optimizer)


main()
