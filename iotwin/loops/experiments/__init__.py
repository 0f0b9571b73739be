"""Experiments: a grid of training jobs, described by one YAML. Each job is traced."""
