"""Record one target (a command, container, ...) into one trace, and show it live."""
