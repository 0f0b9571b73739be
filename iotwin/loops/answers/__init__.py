"""Answer questions about a job: what limits it, what to change, and what a change of its twin does."""
