"""Trains PyTorch models within a memory budget: evicts results of operations, and recomputes them when they are read."""
