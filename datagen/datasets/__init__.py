"""Writers of the data sets of the real workloads, and of those that a twin records."""
