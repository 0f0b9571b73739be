"""When a difference is worth a sentence, and which."""

from types import SimpleNamespace

import numpy as np

from iotwin.tracesim.difference_sentences import differences
from iotwin.tracesim.phases import PHASES, TRAINING


def summary(scatter=0.0, drift=0.0, sequential=1.0, jumps=0.0):
    """What the order of files is told from; the same in all phases."""
    of_phases = np.zeros(len(PHASES))
    moved = np.array([[sequential, 0.0, 1 - sequential, 0.0]] * 2)
    return SimpleNamespace(scatter=of_phases + scatter, drift=of_phases + drift, jumps=of_phases + jumps, step_bytes=moved)


def test_files_in_as_random_an_order_are_not_told_apart():
    assert differences("access_order", summary(scatter=0.9), summary(scatter=0.8)) == ()
    assert differences("access_order", summary(drift=0.9), summary(drift=0.8)) == ()


def test_orders_of_files_are_told_with_both_figures():
    a, b = summary(), summary()
    a.scatter[TRAINING], b.scatter[TRAINING] = 0.1, 1.0
    (said,) = differences("access_order", a, b)
    assert said.startswith("B goes through its files more randomly than A in training") and "scatter 1.00 against 0.10" in said
    a, b = summary(), summary()
    a.drift[TRAINING], b.drift[TRAINING] = 1.0, 0.1
    (said,) = differences("access_order", a, b)
    assert said.startswith("B changes the order of files less than A") and "0.10 against 1.00" in said


def test_bytes_moved_in_sequence_are_told():
    (said,) = differences("access_order", summary(sequential=1.0), summary(sequential=0.5))
    assert said == "50 % of B's bytes are moved sequentially within files, 100 % of A's"


def test_the_order_within_large_files_is_told():
    a, b = summary(), summary()
    a.jumps[TRAINING], b.jumps[TRAINING] = 0.9, 0.1
    (said,) = differences("access_order", a, b)
    assert said.startswith("B goes through the parts of its large files less randomly than A in training (0.10 against 0.90")
    assert differences("access_order", summary(jumps=0.9), summary(jumps=0.8)) == ()
