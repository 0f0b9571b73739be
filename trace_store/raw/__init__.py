"""Write the binary records of a recording while a job runs, and convert them to the tables of a trace afterwards."""
