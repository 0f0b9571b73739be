"""Hands a batch to the model by one method, and trains on it by another."""

import torch
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"A": torch.full((4,), float(index)), "B": torch.ones(1)}


class Model:
    def __init__(self, lr):
        self.net = torch.nn.Linear(4, 1)
        self.optimizers = []
        self.optimizers.append(torch.optim.Adam(self.net.parameters(), lr=lr))

    def set_input(self, data):
        self.real_a, self.real_b = data["A"], data["B"]

    def forward(self):
        self.fake_b = self.net(self.real_a)

    def backward(self):
        self.loss = torch.nn.functional.l1_loss(self.fake_b, self.real_b)
        self.loss.backward()

    def optimize_parameters(self):
        self.forward()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.backward()
        for optimizer in self.optimizers:
            optimizer.step()


torch.manual_seed(1)
dataset = DataLoader(Pairs(), batch_size=4, shuffle=True)
model = Model(lr=0.01)
for epoch in range(2):
    for i, data in enumerate(dataset):
        model.set_input(data)
        model.optimize_parameters()
