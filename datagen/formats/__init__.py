"""Writers of the file formats that the emulator reads."""
