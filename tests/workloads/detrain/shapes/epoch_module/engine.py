"""Trains and evaluates for an epoch."""

from .meters import Average


def train_one_epoch(model, criterion, data_loader, optimizer, epoch, max_norm=0.0):
    model.train()
    average = Average()
    for samples, targets in data_loader:
        outputs = model(samples)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.add(loss.item())
    return average.value


def evaluate(model, criterion, data_loader):
    model.eval()
    return sum(criterion(model(samples), targets).item() for samples, targets in data_loader)
