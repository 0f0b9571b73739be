"""Recording one target into one trace."""
