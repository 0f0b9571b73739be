"""`emulator` performs the I/O of the training job in a workload YAML. `fit` derives such a YAML, a twin, from a trace."""
