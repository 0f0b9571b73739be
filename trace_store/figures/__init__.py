"""Figures about one trace: statistics, summary, page cache, SQL."""
