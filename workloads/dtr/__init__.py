"""Dynamic tensor rematerialization (Kirisame et al., ICLR 2021): its simulator, heuristics, static planners and logs."""
