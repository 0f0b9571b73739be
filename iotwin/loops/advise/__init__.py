"""Advice about a traced job: what limits it."""
