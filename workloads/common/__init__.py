"""What the programs of all workloads share."""
