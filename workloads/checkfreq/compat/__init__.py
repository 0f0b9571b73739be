"""Modules under the names that scripts of the original import."""
