"""DFTracer, as far as DLIO's tests look for it."""
