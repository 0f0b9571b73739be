"""A GAN: two models and two optimizers, and several steps of the critic on each batch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
generator, critic = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=0.01)
opt_d = torch.optim.Adam(critic.parameters(), lr=0.01)
n_critic = 2
for epoch in range(2):
    for (real,) in loader:
        for _ in range(n_critic):
            noise = torch.randn(len(real), 2)
            loss_d = critic(generator(noise).detach()).mean() - critic(real).mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        noise = torch.randn(len(real), 2)
        loss_g = -critic(generator(noise)).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
