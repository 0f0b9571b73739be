"""Averages."""


class Average:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total, self.count = self.total + value, self.count + 1

    def step(self):
        self.total = self.count = 0

    @property
    def value(self):
        return self.total / max(self.count, 1)
