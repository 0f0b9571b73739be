"""Find the files and samples of a workload's data set, and compute the order in which samples are read."""
