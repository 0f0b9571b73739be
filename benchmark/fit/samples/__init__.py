"""Which samples a data set has, and what each read."""
