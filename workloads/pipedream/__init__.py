"""PipeDream (SOSP 2019): plans pipeline-parallel training from a profile of a model's layers."""
