"""The original's module of this name: put this folder on sys.path in place of its src/."""

from iotwin.workloads.checkfreq.iterator import CFIterator

__all__ = ["CFIterator"]
