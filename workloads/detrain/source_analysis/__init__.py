"""Analyses a training script and its local modules without running them: scopes, values, calls, and the sources of batches."""
