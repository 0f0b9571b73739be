"""CheckFreq (FAST 2021): takes checkpoints as often as a bound on their cost allows, and writes them while training continues."""

# layouts of checkpoints: iotwin's checkpoint store, or files as CheckFreq's own code writes them
OURS, THEIRS = LAYOUTS = ("ours", "theirs")
