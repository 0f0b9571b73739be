"""The original's module of this name: put this folder on sys.path in place of its src/."""

from iotwin.workloads.checkfreq.manager import CFManager, CFMode

__all__ = ["CFManager", "CFMode"]
