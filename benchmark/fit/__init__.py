"""fit: from a trace to the twin of the traced job."""
