"""The emulator: a workload YAML in, a training job's I/O out, without model or accelerator."""
