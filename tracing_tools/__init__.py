"""Capture of a running job into a trace: probes, backends, samplers, targets and the trace store."""
