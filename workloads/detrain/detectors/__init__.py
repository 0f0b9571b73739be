"""Detect, while a script runs, what keeps its reruns from being equal, and at which line."""
