"""Samplers of the machine's utilisation, one row per interval, from /proc, sysfs and NVML."""
