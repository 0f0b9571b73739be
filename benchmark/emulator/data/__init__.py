"""What a workload reads: its files, its samples and their order."""
