"""The simulator of dynamic tensor rematerialization: logs, heuristics, the compiled kernel and sweeps. Needs no torch."""
