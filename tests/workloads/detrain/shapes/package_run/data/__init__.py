"""Data."""

from .sets import make_loader

__all__ = ["make_loader"]
