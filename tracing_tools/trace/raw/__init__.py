"""From a recording's binary records to the tables of a trace."""
