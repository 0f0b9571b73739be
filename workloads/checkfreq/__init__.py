"""CheckFreq (FAST 2021): checkpoints as often as a bound on their cost allows, written beside training."""

OURS, THEIRS = LAYOUTS = ("ours", "theirs")  # of checkpoints: the shared store, the original's files
