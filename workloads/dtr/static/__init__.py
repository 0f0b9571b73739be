"""Static plans for rematerialisation, which are made before the step from its whole graph (Checkmate, MLSys 2020)."""
