"""Measurements: each as a ratio against a rival or a floor in the same run, interleaved, medians of several."""
