"""A class that holds model, optimizer and loader."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, epochs):
        self.model, self.epochs = model, epochs
        self.loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.history = []

    def compute_loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.model(x), y)

    def run_epoch(self):
        for batch in self.loader:
            loss = self.compute_loss(batch)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            self.history.append(loss.item())

    def fit(self):
        for _ in range(self.epochs):
            self.run_epoch()


torch.manual_seed(1)
Trainer(torch.nn.Linear(4, 1), epochs=2).fit()
