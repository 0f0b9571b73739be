"""An ensemble: an inner loop over models and optimizers trains each of them on the same batch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8)
models = [torch.nn.Linear(4, 1) for _ in range(3)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
for epoch in range(2):
    for x, y in loader:
        losses = [torch.nn.functional.mse_loss(model(x), y) for model in models]
        for optimizer, loss in zip(optimizers, losses):
            optimizer.zero_grad()
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
