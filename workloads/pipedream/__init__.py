"""PipeDream (SOSP'19): plans, simulates and emulates pipeline-parallel training from a profile of a model's layers."""
