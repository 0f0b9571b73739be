"""Backends: ways to capture calls, one per module. They all write the same records."""
