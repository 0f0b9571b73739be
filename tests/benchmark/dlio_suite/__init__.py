"""DLIO's own tests, run as they stand against this emulator: `runner` starts them, `stand_ins` are what they import."""
