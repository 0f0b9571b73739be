"""DETrain: makes any training script resumable at every batch and repeatable bit for bit, without changing its files."""
