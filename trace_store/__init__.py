"""Traces on disk: their schema, how to write, read, import and recover them, and figures about one trace."""
