"""Runs a training script so that it logs where its epochs, steps, evaluations and checkpoints begin and end."""
