"""Saves and restores the whole state of a job: snapshots, writers, tracked objects, sharded state, positions in the data."""
