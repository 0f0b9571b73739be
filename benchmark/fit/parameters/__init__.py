"""The parameters of a traced job as a DLIO-style YAML: its samples, steps, evaluations and checkpoints."""
