"""Figures about one trace: statistics, summary, page cache, durability of checkpoints, SQL."""
