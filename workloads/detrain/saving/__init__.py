"""Finds which objects of a script hold its state, saves them into checkpoints, and restores them."""
