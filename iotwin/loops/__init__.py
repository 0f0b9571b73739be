"""Tasks that combine several packages: the demo, making a twin, experiments, emulated runs."""
