"""Planning without torch: profile graphs, the optimizer, plans, the driver's files and reports."""
