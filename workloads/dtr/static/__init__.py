"""Static planners for rematerialisation: they plan a training step from its graph before it runs (Checkmate, MLSys 2020)."""
