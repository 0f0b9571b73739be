"""Sample the machine's utilisation from /proc, sysfs and NVML, one row per interval."""
