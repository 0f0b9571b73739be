"""Numbers that draws, times and orders are made of: keyed generators, permutations, distributions, confidence."""
