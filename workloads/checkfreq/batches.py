"""CFBatches, CheckFreq's name for ResumableBatches: a batch sampler whose position checkpoints save and restore."""

from iotwin.workloads.state.batches import ResumableBatches as CFBatches

__all__ = ["CFBatches"]
