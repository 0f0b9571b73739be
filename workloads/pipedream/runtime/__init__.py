"""The runtime of PipeDream: processes that train a model in stages, with the weight versions that their plan names."""
