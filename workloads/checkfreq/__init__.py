"""CheckFreq (FAST 2021): checkpoints as often as a bound on their cost allows, written beside training."""
