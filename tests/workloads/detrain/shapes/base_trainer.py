"""A trainer whose loops are in a base class."""

from abc import abstractmethod


class BaseTrainer:
    def __init__(self, loader, optimizer, epochs):
        self.loader, self.optimizer, self.epochs = loader, optimizer, epochs

    @abstractmethod
    def forward_loss(self, batch):
        raise NotImplementedError

    def train_epoch(self):
        for batch in self.loader:
            loss = self.forward_loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def train(self):
        for epoch in range(1, self.epochs + 1):
            self.train_epoch()
            self.after_epoch(epoch)

    def after_epoch(self, epoch):
        pass
