"""Slices arrays by a permuted index."""

import numpy as np
import torch

rng = np.random.default_rng(1)
images, labels = rng.normal(size=(40, 6)).astype("float32"), rng.integers(0, 3, 40)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch_size = 8
for epoch in range(2):
    order = rng.permutation(len(images))
    for start in range(0, len(images), batch_size):
        chosen = order[start : start + batch_size]
        x = torch.from_numpy(images[chosen])
        y = torch.from_numpy(labels[chosen])
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
