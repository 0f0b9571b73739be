"""Derives from a trainer of another module, whose methods contain the loops."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from base_trainer import BaseTrainer


class RegressionTrainer(BaseTrainer):
    def __init__(self, model, loader, **options):
        super().__init__(loader, torch.optim.SGD(model.parameters(), lr=0.05), **options)
        self.model = model

    def forward_loss(self, batch):
        x, y = batch
        return (self.model(x) - y).pow(2).mean()


torch.manual_seed(1)
trainer = RegressionTrainer(
    torch.nn.Linear(4, 1), DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=8), epochs=2
)
trainer.train()
