"""What generation and the emulator both read of a workload written for DLIO: its YAML and its section `dataset`."""
