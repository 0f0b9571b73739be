"""Read the phases of a job and the parts of its steps from its logs."""
