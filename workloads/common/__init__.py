"""Code that the programs of all workloads share."""
