"""Record one target (a command, a container, ...) as a trace, and show its activity live."""
