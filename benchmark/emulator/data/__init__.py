"""The data set of a workload: its files, its samples and their order."""
