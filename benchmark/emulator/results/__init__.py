"""The figures and the output files of a run."""
