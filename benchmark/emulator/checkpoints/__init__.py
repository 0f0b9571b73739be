"""What a workload writes: its checkpoints."""
