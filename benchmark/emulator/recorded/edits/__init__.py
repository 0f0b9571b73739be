"""Edits a recording: assigns its samples to other batches, loaders, epochs and ranks, and scales its computation."""
