"""Turn the binary records of a recording into the tables of a trace."""
