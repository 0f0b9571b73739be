"""Capture of a running job into a trace: probes, backends, samplers, targets, recorder; and exports of traces."""
