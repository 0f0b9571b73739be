"""Write the data sets of the real workloads, and substitutes for data sets that a trace recorded."""
