"""Decisions that the real training systems and the emulator share. Uses the standard library and numpy only."""
