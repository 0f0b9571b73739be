"""Edit a recording: deal its samples anew to other batches, loaders, epochs and ranks, and scale its computation."""
