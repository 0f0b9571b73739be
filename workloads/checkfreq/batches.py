"""CheckFreq's name for the batch sampler whose position a checkpoint can restore."""

from iotwin.workloads.state.batches import ResumableBatches as CFBatches

__all__ = ["CFBatches"]
