"""Functions for an epoch, in modules of their own."""
