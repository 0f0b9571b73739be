"""Modules with the names that scripts of the original CheckFreq import."""
