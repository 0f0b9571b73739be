"""Synthetic data sets, byte-compatible with what the real workloads read."""
