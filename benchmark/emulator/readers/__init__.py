"""Readers of the emulator: one module for each kind of format, and the choice of one for a workload."""
