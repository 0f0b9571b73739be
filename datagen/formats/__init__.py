"""Writers of the file formats the emulator reads, a module for those that share parts."""
