"""The numbers by which the simulator's kernel and its callers name results, policies, scores and events."""

# Results of a simulated run. GROW: an array was too short, so the run must be repeated.
PASS, OUT_OF_MEMORY, THRASH, GROW = 0, 1, 2, 3
# Deallocation policies: what happens when the last external reference to a storage is removed.
IGNORE, EAGER, BANISH = 0, 1, 2
# What the numerator of a storage's score is:
# UNIT: 1.
# LOCAL: the storage's own cost, to which each of the next four adds the cost of evicted storages:
# SETS: all storages in the sets of its evicted neighbours.
# NEIGHBOURHOOD: its evicted ancestors plus its evicted descendants, the paper's e*. A storage that is both counts twice.
# ANCESTORS: its evicted ancestors.
# UNION: the storages of e*, each once.
# PLUG_IN: there is no numerator, because a user's function computes the whole score.
UNIT, LOCAL, SETS, NEIGHBOURHOOD, ANCESTORS, UNION, PLUG_IN = 0, 1, 2, 3, 4, 5, 6
# How a heuristic chooses the storage to evict: by lowest score, by oldest access, or at random.
SCORE, LEAST_RECENT, RANDOM = 0, 1, 2
# Kinds of recorded events.
E_PENDING, E_USE, E_LOCK, E_UNLOCK, E_PRESSURE = 0, 1, 2, 3, 4
E_COMPUTE, E_RECOMPUTE, E_ALSO_COMPUTED, E_ALSO_RECOMPUTED = 5, 6, 7, 8
E_EVICT, E_FREE, E_BANISH, E_PIN, E_BIRTH, E_DEATH, E_REUSE = 9, 10, 11, 12, 13, 14, 15
