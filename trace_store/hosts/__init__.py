"""Sets of hosts: the traces that the hosts of one job recorded, which are read in place as one trace."""
