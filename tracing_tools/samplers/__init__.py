"""Utilisation of the machine, one row per interval, read from /proc, sysfs and NVML without subprocesses."""
