"""The emulator performs the I/O of the training job in a workload YAML, without a model or an accelerator."""
