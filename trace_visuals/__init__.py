"""Pictures of traces: the timeline figure and the self-contained HTML report."""
