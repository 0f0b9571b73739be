"""Trains by a function of another module, which the package imports relatively."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

from epoch_module.engine import evaluate, train_one_epoch


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--train-steps", type=int, default=0)
    return parser.parse_args()


def main(args):
    torch.manual_seed(1)
    data_loader_train = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=8)
    data_loader_val = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=8)
    model = torch.nn.Linear(4, 1)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, data_loader_train, optimizer, epoch)
        evaluate(model, criterion, data_loader_val)


if __name__ == "__main__":
    main(parse())
