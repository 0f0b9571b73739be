"""Loaders of the emulator: one module each, and the choice of one for a workload."""
