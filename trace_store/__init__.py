"""Traces on disk: the schema of their tables, writing, reading, importing and recovering them, and figures about one trace."""
