"""Measures the layers of a model: the times of their passes, and the bytes of their outputs and parameters."""
