"""Write the binary records of a recording, and convert them to the tables of a trace."""
