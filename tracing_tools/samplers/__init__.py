"""Sample the machine's utilisation from /proc and NVML, once per interval."""
