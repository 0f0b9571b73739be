"""Reads a training script and its local modules without running them: scopes, values, calls, and where a batch comes from."""
