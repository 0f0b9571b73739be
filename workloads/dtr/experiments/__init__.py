"""Experiments of DTR's authors: their configurations, result folders and data files, run by ``iotwin dtr train``."""
