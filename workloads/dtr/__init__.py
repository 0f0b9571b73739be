"""Dynamic tensor rematerialization, DTR (Kirisame et al., ICLR 2021): a simulator, its logs, and static planners to compare."""
