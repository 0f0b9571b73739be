"""Makes the batch sampler whose position a checkpoint can restore available under CheckFreq's name."""

from iotwin.workloads.state.batches import ResumableBatches as CFBatches

__all__ = ["CFBatches"]
