"""Dynamic tensor rematerialization, DTR (Kirisame et al., ICLR 2021): a simulator, operation logs for it, and static planners."""
