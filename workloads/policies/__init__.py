"""What a job decides, shared by the real systems and the emulator: standard library and numpy only."""
