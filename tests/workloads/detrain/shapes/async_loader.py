"""Trains in a coroutine that awaits its batches; functions are called `async_` without being so."""

import asyncio

import torch


async def batches(count):
    for _ in range(count):
        await asyncio.sleep(0)
        yield torch.randn(8, 4), torch.randn(8, 1)


def async_step(model, optimizer, x, y):
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()


async def main():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        async for x, y in batches(3):
            async_step(model, optimizer, x, y)


asyncio.run(main())
