"""Loops over steps of another module, each of which gets a batch and trains on it."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from step_of_other_module.trainer import Trainer

torch.manual_seed(1)
trainer = Trainer(torch.nn.Linear(4, 1), DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 1)), batch_size=8))
for _ in range(6):
    trainer.step()
