"""Replaces the module of this name in CheckFreq's src/, if this folder is on sys.path in place of src/."""

from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint

__all__ = ["CFCheckpoint"]
