"""Steps a scheduler for each batch, and a profiler; neither of them updates weights."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Profiler:
    def __init__(self):
        self.steps = 0

    def step(self):
        for _ in range(2):
            self.steps += 1


torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
solver = torch.optim.SGD(model.parameters(), lr=0.05)
sched = torch.optim.lr_scheduler.OneCycleLR(solver, max_lr=0.1, total_steps=10)
prof = Profiler()
for epoch in range(2):
    for x, y in loader:
        solver.zero_grad(set_to_none=True)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        solver.step()
        sched.step()
        prof.step()
