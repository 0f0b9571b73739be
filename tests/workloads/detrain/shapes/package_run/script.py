"""Trains with modules that it imports relatively."""

import torch

from . import loops
from .data import make_loader


def main():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    loops.fit(model, make_loader(24), torch.optim.SGD(model.parameters(), lr=0.05), epochs=2)


if __name__ == "__main__":
    main()
