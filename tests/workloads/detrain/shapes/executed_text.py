"""Runs its loop from a text, which no reading of the code can find."""

import torch

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
LOOP = "for x in torch.randn(3, 8, 4):\n    optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()\n"
exec(compile(LOOP, "loop", "exec"))
