"""Emulates the writing and reading of a workload's checkpoints."""
