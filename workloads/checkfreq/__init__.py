"""CheckFreq (FAST 2021): takes checkpoints as often as a bound on their cost allows, and writes them while training continues."""

OURS, THEIRS = LAYOUTS = ("ours", "theirs")  # checkpoints go to the checkpoint store, or to files as the original writes them
