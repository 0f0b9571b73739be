"""Record a running job as a trace (probes, backends, samplers, targets, recorder), and export traces to other formats."""
