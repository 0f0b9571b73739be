"""Static plans: what to recompute when, decided before the step with the whole graph in view (Checkmate, MLSys 2020)."""
