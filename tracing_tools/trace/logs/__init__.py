"""The phases that a job's log tells."""
