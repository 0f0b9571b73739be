"""Real training jobs, which iotwin traces and emulates, and the training systems that they use."""
