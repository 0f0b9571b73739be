"""Turns a model and a plan into the modules of a pipeline's stages, with their weights and, if requested, as code."""
