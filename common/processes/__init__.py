"""Start and end child processes and programs, and run work in parallel threads."""
