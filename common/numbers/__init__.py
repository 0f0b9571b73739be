"""Random generators, permutations, distributions of durations, emulated sleep and confidence intervals."""
