"""CheckFreq (FAST 2021): checkpoints as often as a bound on their cost allows, written while training continues."""

OURS, THEIRS = LAYOUTS = ("ours", "theirs")  # the checkpoint store, or the original's files
