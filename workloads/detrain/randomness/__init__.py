"""How far the randomness of a script is fixed: profiles, items with keyed generators, and the machine that results depend on."""
