"""Has comprehensions where loops could be: around loaders, losses and models, none of which is a loop of the script."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loaders = [DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=8) for _ in range(2)]
stored = [batch for loader in loaders for batch in loader]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step(batch):
    x, y = batch
    parts = [torch.nn.functional.mse_loss(model(row[None]), target[None]) for row, target in zip(x, y)]
    loss = sum(part for part in parts) / len(parts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for epoch in range(2):
    history = []
    for batch in stored:
        history.append(step(batch))
    print(f"epoch {epoch}", sum(value for value in history) / len([value for value in history]))
