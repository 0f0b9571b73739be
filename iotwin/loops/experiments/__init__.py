"""Experiments: a grid of training jobs from one YAML, each cell traced."""
