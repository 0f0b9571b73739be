"""Generate synthetic data sets in the formats that the real workloads read."""
