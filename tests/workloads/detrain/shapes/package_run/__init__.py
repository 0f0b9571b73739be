"""A package whose script imports relatively: it runs by `python -m package_run.script`."""
