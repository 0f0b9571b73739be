"""The recorder of one target into one trace."""
