"""Record a running job as a trace (backends, probes, samplers, targets, recorder), and export traces to other formats."""
