"""The checkpoints of a traced job: which files, when, and how they were written."""
