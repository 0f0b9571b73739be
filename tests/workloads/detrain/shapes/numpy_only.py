"""Trains a linear model in numpy, with an optimizer of the script."""

import numpy as np


class SGD:
    def __init__(self, weights, lr):
        self.weights, self.lr = weights, lr

    def step(self, gradient):
        self.weights -= self.lr * gradient


rng = np.random.default_rng(1)
inputs = rng.normal(size=(40, 4))
targets = inputs @ np.arange(4.0)
weights = np.zeros(4)
optimizer = SGD(weights, 0.1)
for epoch in range(3):
    for start in range(0, 40, 8):
        x, y = inputs[start : start + 8], targets[start : start + 8]
        error = x @ weights - y
        optimizer.step(x.T @ error / len(x))
assert np.abs(weights).sum() > 1
