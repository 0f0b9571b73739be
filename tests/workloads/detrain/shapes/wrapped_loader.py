"""Counts, zips and shows the progress of its loader, all at once; the header of the loop has several lines."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def tqdm(iterable, total=None, desc=""):
    """Stand in for the progress bar of the same name."""
    return iterable


torch.manual_seed(1)
train_loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
weights = [1.0, 0.5, 1.0, 0.5, 1.0]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for index, (
        weight,
        (x, y),
    ) in enumerate(
        zip(
            weights,
            tqdm(train_loader, total=5, desc=f"epoch {epoch}"),
        ),
        start=1,
    ):
        loss = weight * (model(x) - y).pow(2).mean() / index
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
