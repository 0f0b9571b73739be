"""Answer questions about a job: what limits it, what to change, what a change of its twin does, and what tracing it costs."""
