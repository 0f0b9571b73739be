"""Static rematerialisation plans, made from the whole graph before the step (Checkmate, MLSys 2020)."""
