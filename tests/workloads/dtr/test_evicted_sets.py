"""The charges for sets of evicted values equal those that a search of the whole graph finds."""

import random

import pytest

pytest.importorskip("torch")

from iotwin.workloads.dtr.live.evicted_sets import EvictedSets
from iotwin.workloads.dtr.live.recomputation_graph import ValueGraph


class _Row:
    slot = 0
    bytes = 8


class NaiveSets:
    """A list of sets of rows. An evicted row joins its neighbours' sets; a row that leaves its set does not divide it."""

    def __init__(self, graph: ValueGraph) -> None:
        self.graph = graph
        self.sets: list[set[int]] = []

    def evicted(self, row: int) -> None:
        near = {*self.graph.parents[row], *self.graph.children[row]}
        joined = [one for one in self.sets if one & near]
        self.sets = [one for one in self.sets if not one & near] + [{row}.union(*joined)]

    def left(self, row: int) -> None:
        self.sets = [one - {row} for one in self.sets if one != {row}]

    def charge(self, row: int) -> int:
        near = {*self.graph.parents[row], *self.graph.children[row]}
        return sum(self.graph.cost[other] for one in self.sets if one & near for other in one)


@pytest.mark.parametrize("seed", range(30))
def test_charges_equal_those_of_a_search(seed: int) -> None:
    chance, graph = random.Random(seed), ValueGraph()
    sets, naive = EvictedSets(graph), NaiveSets(graph)
    needed, evicted = False, set[int]()
    rows: list[int] = []
    for _ in range(200):
        kind = chance.choice("aaaeeeecr")
        resident = [row for row in rows if row not in evicted]
        if kind == "a" or not rows:
            parents = chance.sample(resident, min(len(resident), chance.randint(0, 3)))
            for _ in range(chance.choice((1, 2))):  # results of one operation
                value = _Row()
                graph.add(value, None, chance.randint(1, 99), parents, 1)
                rows.append(value.slot)
        elif kind == "e" and resident:
            row = chance.choice(resident)
            evicted.add(row)
            sets.evicted(row)
            if chance.random() < 0.3 and not needed:  # it is back before anything is chosen
                evicted.discard(row)
                sets.computed(row)
            else:
                sets.settle()
                needed = True
                naive.evicted(row)
        elif kind == "c" and evicted:
            row = chance.choice(sorted(evicted))
            evicted.discard(row)
            sets.computed(row)
            naive.left(row)
        elif kind == "r":
            row = chance.choice(rows)
            rows.remove(row)
            sets.removed(row)
            naive.left(row)
            evicted.discard(row)
            graph.remove(row)
        for row in rows:
            if row not in evicted:
                assert graph.charges[row] == naive.charge(row)
    assert len(naive.sets) > 0
