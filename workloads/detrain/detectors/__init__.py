"""Detects, while a script runs, why reruns of it would differ, and at which lines of the script."""
