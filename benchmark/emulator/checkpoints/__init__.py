"""Write and read the checkpoints of a workload, and decide when they are due and which remain."""
