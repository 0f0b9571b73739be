"""Compute the figures of a run and write its output files."""
