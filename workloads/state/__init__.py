"""Checkpoints of a job's whole state: snapshots, writers, tracked objects, sharding, data positions and resuming."""
