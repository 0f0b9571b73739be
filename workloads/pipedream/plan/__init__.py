"""Plans pipelines, without torch: layer graphs, the optimizer, plan files, the driver's files and reports."""
