"""The real training jobs whose storage behaviour the rest of the project traces and emulates."""
