"""The roof: the command line, one small file per command, and the loops that use several rooms."""

__version__ = "0.1.0"
