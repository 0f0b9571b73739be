"""The event loop: replays a schedule under a memory budget, evicting and rematerialising; compiled by numba, or plain.

State is a few arrays of records, time an integer clock in the unit of the costs, and what would be recursion an explicit stack.
The rules are those of the paper's appendix C and of its authors' simulator; docs/dtr.md states them.
"""

import math
from typing import Any, NamedTuple

from workloads.dtr.compiler import compiler_of

compiled = compiler_of(__name__)
inlined = compiler_of(__name__, inline=True)

Records = Any
Numbers = Any  # array of int64 under numba, list of int without it

# Results of a run.
PASS, OUT_OF_MEMORY, THRASH, GROW = 0, 1, 2, 3
# Deallocation: what happens when the last external reference to a storage goes.
IGNORE, EAGER, BANISH = 0, 1, 2
# Costs of a score: 1, the storage's own, + its evicted neighbours' sets, + e* (two sums), + evicted ancestors, + e* (one set);
# or a function's.
UNIT, LOCAL, SETS, NEIGHBOURHOOD, ANCESTORS, UNION, PLUG_IN = 0, 1, 2, 3, 4, 5, 6
# What a heuristic does with them.
SCORE, LEAST_RECENT, RANDOM = 0, 1, 2
# Events.
E_PENDING, E_USE, E_LOCK, E_UNLOCK, E_PRESSURE = 0, 1, 2, 3, 4
E_COMPUTE, E_RECOMPUTE, E_ALSO_COMPUTED, E_ALSO_RECOMPUTED = 5, 6, 7, 8
E_EVICT, E_FREE, E_BANISH, E_PIN, E_BIRTH, E_DEATH, E_REUSE = 9, 10, 11, 12, 13, 14, 15
# Sides of a storage: what it was made of, and what was made of it.
UP, DOWN = 0, 1
WORD = 60  # bits of a word under numba; plain Python takes a row as one long integer
# Where a storage is.
EVICTED, RESIDENT, UNCOMPUTED = 0, 1, 2
NEVER = -(1 << 61)

# The fields of the records that State is made of.
FIELDS = {
    "run": (
        "clock", "memory", "peak", "recompute_cost", "evictions", "deallocations", "recomputed", "accesses", "evaluations",
        "pool_size", "banishments", "nodes", "events", "draws", "stamp", "aux_top", "ops_done",
        "words", "word",  # of a row of bits, and bits of a word; 0 where there are none, and every search is made afresh
    ),
    "storages": (
        "after", "before",  # in the pool of those that can be evicted, oldest first; -1 outside; the last record is its ends
        "accessed", "size", "cost", "near_valid", "near_start", "near_end", "near_edges", "node",
        "status", "banished", "stamp", "child_start", "children_made", "parent_start", "parents_made",
        "locks", "references", "pinned", "view_start", "views_made", "dependents",
        "stacked", "found", "candidate",  # lists that use these records as room: they are not of this storage
    ),
    # What a storage reaches through evicted ones: first of all storages upwards, then of all downwards. Edges and cost are a
    # search's, degree the edges of the storage alone; its row in `bits` holds what it reaches, in the words from low to high.
    "reach": ("valid", "cost", "edges", "degree", "low", "high", "at"),
    "tensors": ("op", "storage", "size", "defined", "references", "dependent_start"),
    "ops": ("cost", "total", "arg_start", "arg_end", "out_start", "out_end", "frame_tensor", "frame_next", "frame_end"),
    "slots": ("argument", "first"),  # arguments; `first` is the operator's first one of the same storage
    "items": ("step", "operand"),
    "nodes": ("parent", "sum"),  # of the forest of sets
    "events": ("kind", "clock", "ident"),
}  # fmt: skip


class State(NamedTuple):
    """Records, which numba sees as arrays of structs and plain Python as lists of objects; and lists of numbers."""

    run: Records
    storages: Records
    tensors: Records
    ops: Records
    slots: Records
    items: Records
    nodes: Records
    events: Records
    reach: Records
    bits: Numbers
    near: Numbers  # evicted neighbours, of a storage from near_start to near_end
    links: Numbers  # storages' views (tensors), parents and children (storages, one an edge), in the order of the calls
    dependent: Numbers  # flags: a tensor is an evicted (or not yet computed) dependent of the storage of an argument
    aux: Numbers  # undefined arguments of the operators being performed
    draws: Numbers  # uniform numbers in [0, 1)


class Rules(NamedTuple):
    """What decides: budget, limits and the heuristic."""

    budget: int
    recompute_limit: int
    policy: int
    choice: int
    cost: int
    by_size: int
    by_staleness: int
    sampling: int
    ignore_small: int
    events: int
    faithful: int  # repeat the original's slip in banishing: after a parent is banished the next one is passed over


@inlined
def record(s: State, rules: Rules, kind: int, ident: int) -> None:
    """Append an event; a run whose events do not fit is run again with more room."""
    if rules.events:
        place = s.run[0].events
        if place < len(s.events):
            s.events[place].kind = kind
            s.events[place].clock = s.run[0].clock
            s.events[place].ident = ident
        s.run[0].events = place + 1


@inlined
def pool_add(s: State, storage: int) -> None:
    """Make a storage evictable, as the latest one."""
    if s.storages[storage].after >= 0:
        return
    end = len(s.storages) - 1
    last = s.storages[end].before
    s.storages[last].after = storage
    s.storages[storage].before = last
    s.storages[storage].after = end
    s.storages[end].before = storage
    s.run[0].pool_size += 1


@inlined
def pool_remove(s: State, storage: int) -> None:
    """Make a storage unevictable."""
    after = s.storages[storage].after
    if after >= 0:
        before = s.storages[storage].before
        s.storages[before].after = after
        s.storages[after].before = before
        s.storages[storage].after = -1
        s.run[0].pool_size -= 1


@inlined
def lock(s: State, rules: Rules, storage: int) -> None:
    """Keep a storage resident until it is unlocked as often."""
    if s.storages[storage].locks == 0:
        pool_remove(s, storage)
    s.storages[storage].locks += 1
    record(s, rules, E_LOCK, storage)


@inlined
def unlock(s: State, rules: Rules, storage: int) -> None:
    """Take one lock off; the last one makes the storage evictable."""
    s.storages[storage].locks -= 1
    if s.storages[storage].locks == 0:
        pool_add(s, storage)
        record(s, rules, E_UNLOCK, storage)


@inlined
def pin(s: State, rules: Rules, storage: int) -> None:
    """Lock a storage for good."""
    if s.storages[storage].pinned == 0:
        lock(s, rules, storage)
        s.storages[storage].pinned = 1
        record(s, rules, E_PIN, storage)


# ---- evicted neighbourhoods ----


@inlined
def hidden(s: State, here: int, other: int) -> bool:
    """Return whether the edge from `here` to `other` is gone: banishing cuts those that lead to the banished storage.

    It can be back in memory, as a sibling of something recomputed, and then still sees what was there when it was banished.
    """
    banished = s.storages[other].banished
    return banished > 0 and (s.storages[here].banished == 0 or banished < s.storages[here].banished)


@inlined
def next_stamp(s: State) -> int:
    """Return a number that no storage is stamped with."""
    s.run[0].stamp += 1
    return s.run[0].stamp


@inlined
def edges_of(s: State, storage: int, side: int) -> tuple[int, int]:
    """Return where in `links` the storages next to one begin and end: of its results (DOWN) or its arguments (UP)."""
    if side == DOWN:
        begin = s.storages[storage].child_start
        return begin, begin + s.storages[storage].children_made
    begin = s.storages[storage].parent_start
    return begin, begin + s.storages[storage].parents_made


@compiled
def search(s: State, base: int, side: int, mark: int) -> tuple[int, int, int]:
    """Walk from `base` through evicted storages; return (their cost, edges, number) and leave them in the `found` list.

    Storages stamped `mark` count as seen. What is being computed for the first time counts as evicted.
    """
    top, found, cost, edges = 1, 0, 0, 0
    s.storages[0].stacked = base
    while top > 0:
        top -= 1
        storage = s.storages[top].stacked
        begin, end = edges_of(s, storage, side)
        for edge in range(begin, end):
            other = s.links[edge]
            if s.storages[other].banished and hidden(s, storage, other):
                continue
            edges += 1
            if s.storages[other].status != RESIDENT and s.storages[other].stamp != mark:
                s.storages[other].stamp = mark
                cost += s.storages[other].cost
                s.storages[top].stacked = other
                top += 1
                s.storages[found].found = other
                found += 1
    return cost, edges, found


@compiled
def follow(s: State, storage: int, side: int) -> None:
    """Bring what `storage` reaches up to date, after what its evicted neighbours reach: depth first, as graphs are deep.

    Needs a graph in which every edge leads to a later storage.
    """
    base = side * len(s.storages)
    s.storages[0].stacked = storage
    s.reach[base + storage].at = edges_of(s, storage, side)[0]
    top = 0
    while top >= 0:
        here = s.storages[top].stacked
        edge, end = s.reach[base + here].at, edges_of(s, here, side)[1]
        while edge < end and (s.reach[base + s.links[edge]].valid or not passes(s, here, s.links[edge])):
            edge += 1
        s.reach[base + here].at = edge
        if edge == end:
            unite(s, here, side)
            top -= 1
        else:
            top += 1
            s.storages[top].stacked = s.links[edge]
            s.reach[base + s.links[edge]].at = edges_of(s, s.links[edge], side)[0]


@inlined
def passes(s: State, here: int, other: int) -> bool:
    """Return whether a search goes on from `here` to its neighbour `other`."""
    if s.storages[other].status == RESIDENT or other == here:
        return False
    return not (s.storages[other].banished and hidden(s, here, other))


@compiled
def unite(s: State, storage: int, side: int) -> None:
    """Note what `storage` reaches: its evicted neighbours and what they reach, which is known.

    That of the neighbour that reaches most is taken whole; of the others only what it lacks is added up.
    """
    base = side * len(s.storages)
    begin, end = edges_of(s, storage, side)
    bits_of_word = s.run[0].word
    degree, most, low, high = 0, -1, s.run[0].words, 0
    for edge in range(begin, end):
        other = s.links[edge]
        if not (s.storages[other].banished and hidden(s, storage, other)):
            degree += 1
            if passes(s, storage, other):
                low = min(low, s.reach[base + other].low, other // bits_of_word)
                high = max(high, s.reach[base + other].high, other // bits_of_word + 1)
                if most < 0 or s.reach[base + other].edges > s.reach[base + most].edges:
                    most = other
    row = (base + storage) * s.run[0].words
    for word in range(low, high):
        s.bits[row + word] = 0
    cost, edges = 0, degree
    if most >= 0:
        from_row = (base + most) * s.run[0].words
        for word in range(s.reach[base + most].low, s.reach[base + most].high):
            s.bits[row + word] = s.bits[from_row + word]
        s.bits[row + most // bits_of_word] |= 1 << most % bits_of_word
        cost, edges = s.storages[most].cost + s.reach[base + most].cost, degree + s.reach[base + most].edges
    for edge in range(begin, end):
        other = s.links[edge]
        if passes(s, storage, other) and (s.bits[row + other // bits_of_word] >> other % bits_of_word) & 1 == 0:
            more_cost, more_edges = absorb(s, row, other, base)
            cost += more_cost
            edges += more_edges
    s.reach[base + storage].valid, s.reach[base + storage].degree = 1, degree
    s.reach[base + storage].low, s.reach[base + storage].high = low, high
    s.reach[base + storage].cost, s.reach[base + storage].edges = cost, edges


@inlined
def absorb(s: State, row: int, other: int, base: int) -> tuple[int, int]:
    """Add a storage, and what it reaches, to a row that lacks it; return cost and edges of what is new there."""
    from_row = (base + other) * s.run[0].words
    bits_of_word = s.run[0].word
    cost, edges = s.storages[other].cost, s.reach[base + other].degree
    for word in range(s.reach[base + other].low, s.reach[base + other].high):
        more = s.bits[from_row + word] & ~s.bits[row + word]
        s.bits[row + word] |= more
        while more:
            lowest = more & -more
            found = word * bits_of_word + int(math.log2(lowest))
            cost += s.storages[found].cost
            edges += s.reach[base + found].degree
            more ^= lowest
    s.bits[row + other // bits_of_word] |= 1 << other % bits_of_word
    return cost, edges


@compiled
def forget(s: State, storage: int, side: int) -> None:
    """Drop what storages found on a `side` of one have cached of the other side, which passes through it.

    Where storages reach by what their neighbours reach, nothing is cached beyond an evicted one that has nothing cached.
    """
    base = (1 - side) * len(s.storages)
    mark = next_stamp(s)
    top = 1
    s.storages[0].stacked = storage
    s.storages[storage].stamp = mark
    while top > 0:
        top -= 1
        begin, end = edges_of(s, s.storages[top].stacked, side)
        for edge in range(begin, end):
            other = s.links[edge]
            if s.storages[other].stamp == mark:
                continue
            s.storages[other].stamp = mark
            if s.storages[other].status != RESIDENT and (s.reach[base + other].valid or s.run[0].words == 0):
                s.storages[top].stacked = other
                top += 1
            s.reach[base + other].valid = 0


@compiled
def forget_neighbours(s: State, storage: int) -> None:
    """Drop the lists of evicted neighbours of the storages next to one."""
    for side in range(2):
        begin, end = edges_of(s, storage, side)
        for edge in range(begin, end):
            s.storages[s.links[edge]].near_valid = 0


@inlined
def changed(s: State, rules: Rules, storage: int, gained: bool) -> None:
    """Say that a storage was evicted or came back, or `gained` a view or an edge: what is cached through it is dropped."""
    if rules.cost == SETS:
        s.storages[storage].near_valid = 0
        if not gained:
            forget_neighbours(s, storage)
    elif rules.cost == NEIGHBOURHOOD or rules.cost == ANCESTORS:
        forget_reached(s, rules, storage, gained)


@compiled
def forget_reached(s: State, rules: Rules, storage: int, gained: bool) -> None:
    """Drop what a storage reaches where it `gained` a view or an edge, and what others reach through it."""
    if gained or s.run[0].words == 0:
        s.reach[storage].valid = 0
        s.reach[len(s.storages) + storage].valid = 0
    if gained and s.storages[storage].status == RESIDENT:
        return  # others' searches end here
    forget(s, storage, DOWN)
    if rules.cost == NEIGHBOURHOOD:
        forget(s, storage, UP)


@inlined
def reached(s: State, storage: int, side: int) -> int:
    """Return the cost of the evicted storages on a side of `storage`; counts the edges of a fresh search."""
    place = side * len(s.storages) + storage
    if s.reach[place].valid == 0:
        if s.run[0].words:
            follow(s, storage, side)
        else:
            cost, edges, _ = search(s, storage, side, next_stamp(s))
            s.reach[place].cost, s.reach[place].edges, s.reach[place].valid = cost, edges, 1
    s.run[0].accesses += s.reach[place].edges
    return s.reach[place].cost


@compiled
def neighbours(s: State, storage: int) -> int:
    """List in `near` the storages next to `storage` that are not resident; return their number. Every edge is an access."""
    if s.storages[storage].near_valid == 0:
        mark = next_stamp(s)
        s.storages[storage].stamp = mark
        found, edges = s.storages[storage].near_start, 0
        for side in range(2):
            begin, end = edges_of(s, storage, side)
            for edge in range(begin, end):
                other = s.links[edge]
                if s.storages[other].banished and hidden(s, storage, other):
                    continue
                edges += 1
                if s.storages[other].status != RESIDENT and s.storages[other].stamp != mark:
                    s.storages[other].stamp = mark
                    s.near[found] = other
                    found += 1
        s.storages[storage].near_valid, s.storages[storage].near_edges = 1, edges
        s.storages[storage].near_end = found
    s.run[0].accesses += s.storages[storage].near_edges
    return s.storages[storage].near_end - s.storages[storage].near_start


@inlined
def find(s: State, node: int) -> int:
    """Return the root of a node of the forest, compressing its path; every node on it is an access."""
    root = node
    s.run[0].accesses += 1
    while s.nodes[root].parent >= 0:
        root = s.nodes[root].parent
        s.run[0].accesses += 1
    while node != root:
        above = s.nodes[node].parent
        s.nodes[node].parent = root
        node = above
    return root


@compiled
def new_node(s: State, storage: int, cost: int) -> None:
    """Give a storage a set of its own."""
    node = s.run[0].nodes
    s.run[0].nodes = node + 1
    if node >= len(s.nodes):
        node = len(s.nodes) - 1  # the run is made again with more room
    s.nodes[node].parent = -1
    s.nodes[node].sum = cost
    s.storages[storage].node = node


@compiled
def join_sets(s: State, storage: int) -> None:
    """Put a storage that was just evicted into one set with its evicted neighbours."""
    new_node(s, storage, s.storages[storage].cost)
    found, start = neighbours(s, storage), s.storages[storage].near_start
    for place in range(start, start + found):
        left = find(s, s.storages[s.near[place]].node)
        right = find(s, s.storages[storage].node)
        if left != right:
            s.nodes[left].parent = right
            s.nodes[right].sum += s.nodes[left].sum


@inlined
def leave_set(s: State, storage: int) -> None:
    """Take a storage that came back out of its set; what it connected stays connected."""
    find(s, s.storages[storage].node)
    s.nodes[find(s, s.storages[storage].node)].sum -= s.storages[storage].cost
    s.storages[storage].node = -1


@inlined
def sets_cost(s: State, storage: int) -> int:
    """Return the sums of the distinct sets next to a storage."""
    found, start = neighbours(s, storage), s.storages[storage].near_start
    distinct, cost = 0, 0
    for place in range(start, start + found):
        root = find(s, s.storages[s.near[place]].node)
        known = False
        for other in range(distinct):
            if s.storages[other].stacked == root:
                known = True
                break
        if not known:
            s.storages[distinct].stacked = root
            distinct += 1
            cost += s.nodes[root].sum
    return cost


# ---- choosing ----


@inlined
def weigh(rules: Rules, cost: int, size: int, staleness: int) -> float:
    """Return cost / (size * staleness), the latter two where the heuristic asks for them."""
    if rules.by_size == 0 and rules.by_staleness == 0:
        return float(cost)
    denominator = 1.0
    if rules.by_size:
        denominator *= float(size)
    if rules.by_staleness:
        denominator *= float(staleness)
    return float(cost) / denominator if denominator > 0.0 else math.inf


@inlined
def score(s: State, rules: Rules, storage: int) -> float:
    """Return the score of evicting a storage: the least one goes."""
    s.run[0].evaluations += 1
    s.run[0].accesses += 1
    accessed, cost = s.storages[storage].accessed, s.storages[storage].cost
    if rules.choice == LEAST_RECENT:
        return float(accessed)
    if rules.cost == UNIT:
        cost = 1
    elif rules.cost == SETS:
        cost += sets_cost(s, storage)
    elif rules.cost == NEIGHBOURHOOD:
        cost += reached(s, storage, DOWN) + reached(s, storage, UP)
    elif rules.cost == ANCESTORS:
        cost += reached(s, storage, UP)
    elif rules.cost == UNION:
        more, accessed = union(s, storage)
        cost += more
    return weigh(rules, cost, s.storages[storage].size, s.run[0].clock - accessed)


@compiled
def union(s: State, storage: int) -> tuple[int, int]:
    """Return cost and latest access of the evicted neighbourhood as one set, of which `storage`'s own access is part."""
    latest = s.storages[storage].accessed
    mark = next_stamp(s)
    cost, edges, found = search(s, storage, DOWN, mark)
    for place in range(found):
        latest = max(latest, s.storages[s.storages[place].found].accessed)
    s.run[0].accesses += edges
    # A storage may be descendant and ancestor at once (through views); it costs once, but is walked both ways.
    descendants = mark
    mark = next_stamp(s)
    top = 1
    s.storages[0].stacked = storage
    while top > 0:
        top -= 1
        here = s.storages[top].stacked
        for edge in range(s.storages[here].parent_start, s.storages[here].parent_start + s.storages[here].parents_made):
            other = s.links[edge]
            status = s.storages[other].status
            if s.storages[other].banished and hidden(s, here, other):
                continue
            s.run[0].accesses += 1
            if status != RESIDENT and s.storages[other].stamp != mark:
                if s.storages[other].stamp != descendants:
                    cost += s.storages[other].cost
                s.storages[other].stamp = mark
                latest = max(latest, s.storages[other].accessed)
                s.storages[top].stacked = other
                top += 1
    return cost, latest


@compiled
def gather(s: State, rules: Rules) -> int:
    """List the evictable storages, without the small ones where these are ignored; return their number."""
    end = len(s.storages) - 1
    size, total, kept = s.run[0].pool_size, 0, 0
    storage = s.storages[end].after
    while storage != end:
        total += s.storages[storage].size
        storage = s.storages[storage].after
    storage = s.storages[end].after
    while storage != end:
        if rules.ignore_small == 0 or s.storages[storage].size * 100 * size >= total:
            s.storages[kept].candidate = storage
            kept += 1
        storage = s.storages[storage].after
    return kept


@inlined
def draw(s: State, below: int) -> int:
    """Return a random number from 0 up to `below`."""
    place = s.run[0].draws
    s.run[0].draws = place + 1
    return int(s.draws[place % len(s.draws)] * below)


@inlined
def choose(s: State, rules: Rules) -> int:
    """Return the storage to evict: the least score, of equal ones the latest, and at once one whose score is 0."""
    if rules.cost <= LOCAL:
        return choose_alone(s, rules)
    end = len(s.storages) - 1
    storage = victim = s.storages[end].after
    best = math.inf
    while storage != end:
        value = score(s, rules, storage)
        if value <= best:
            best, victim = value, storage
        if value == 0.0:
            break
        storage = s.storages[storage].after
    return victim


@inlined
def choose_alone(s: State, rules: Rules) -> int:
    """Choose by scores that look at no other storage, in a loop that calls nothing with the state."""
    storages, clock = s.storages, s.run[0].clock
    end = len(storages) - 1
    storage = victim = storages[end].after
    best, looked = math.inf, 0
    while storage != end:
        looked += 1
        if rules.choice == LEAST_RECENT:
            value = float(storages[storage].accessed)
        else:
            cost = 1 if rules.cost == UNIT else storages[storage].cost
            value = weigh(rules, cost, storages[storage].size, clock - storages[storage].accessed)
        if value <= best:
            best, victim = value, storage
        if value == 0.0:
            break
        storage = storages[storage].after
    s.run[0].evaluations += looked
    s.run[0].accesses += looked
    return victim


@compiled
def choose_otherwise(s: State, rules: Rules) -> int:
    """Return the storage to evict where chance decides, or which ones are looked at."""
    count = gather(s, rules)
    if rules.choice == RANDOM:
        s.run[0].evaluations += 1
        s.run[0].accesses += 1
        return s.storages[draw(s, count)].candidate
    samples = count
    if rules.sampling:
        samples = 1
        while samples * samples < count:
            samples += 1
    best, victim = math.inf, s.storages[0].candidate
    for place in range(samples):
        storage = s.storages[draw(s, count) if rules.sampling else place].candidate
        value = score(s, rules, storage)
        if value <= best:
            best, victim = value, storage
        if value == 0.0:
            break
    return victim


# ---- eviction and banishing ----


@inlined
def add_dependent(s: State, tensor: int, slot: int) -> None:
    """Count a tensor as an evicted dependent of the storage of its operator's argument `slot`."""
    argument = s.slots[slot].argument
    if s.tensors[argument].storage == s.tensors[tensor].storage:
        return
    flag = s.tensors[tensor].dependent_start + s.slots[slot].first
    if s.dependent[flag] == 0:
        s.dependent[flag] = 1
        s.storages[s.tensors[argument].storage].dependents += 1


@inlined
def drop_dependent(s: State, tensor: int, slot: int) -> None:
    """The opposite of add_dependent."""
    argument = s.slots[slot].argument
    if s.tensors[argument].storage == s.tensors[tensor].storage:
        return
    flag = s.tensors[tensor].dependent_start + s.slots[slot].first
    if s.dependent[flag] == 1:
        s.dependent[flag] = 0
        s.storages[s.tensors[argument].storage].dependents -= 1


@compiled
def evict(s: State, rules: Rules, storage: int, kind: int) -> None:
    """Take a storage out of memory, with all its views."""
    s.storages[storage].status = EVICTED
    s.run[0].memory -= s.storages[storage].size
    pool_remove(s, storage)
    for place in range(s.storages[storage].view_start, s.storages[storage].view_start + s.storages[storage].views_made):
        tensor = s.links[place]
        s.tensors[tensor].defined = 0
        if rules.policy == BANISH:
            op = s.tensors[tensor].op
            for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
                add_dependent(s, tensor, slot)
    record(s, rules, kind, storage)
    if rules.cost == SETS:
        join_sets(s, storage)
    changed(s, rules, storage, False)


@compiled
def try_banish(s: State, rules: Rules, storage: int) -> bool:
    """Free a storage for good if nobody refers to it and nothing evicted depends on it; return whether that was so.

    Its children can then no longer be recomputed, so they are pinned.
    """
    if s.storages[storage].references > 0 or s.storages[storage].dependents > 0:
        return False
    if s.storages[storage].status == RESIDENT:
        if s.storages[storage].locks > 0:
            s.storages[storage].locks = 0
            record(s, rules, E_UNLOCK, storage)
        s.run[0].deallocations += 1
        evict(s, rules, storage, E_FREE)
    for place in range(s.storages[storage].view_start, s.storages[storage].view_start + s.storages[storage].views_made):
        tensor = s.links[place]
        op = s.tensors[tensor].op
        for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
            drop_dependent(s, tensor, slot)
    changed(s, rules, storage, False)
    s.run[0].banishments += 1
    s.storages[storage].banished = s.run[0].banishments
    for edge in range(s.storages[storage].child_start, s.storages[storage].child_start + s.storages[storage].children_made):
        child = s.links[edge]
        if child != storage and s.storages[child].banished == 0:
            pin(s, rules, child)
    record(s, rules, E_BANISH, storage)
    return True


# ---- performing operators ----


@inlined
def issue(s: State, rules: Rules, op: int) -> None:
    """Enter an operator's results into the graph, not yet computed."""
    arguments = s.ops[op].arg_end - s.ops[op].arg_start
    results = s.ops[op].out_end - s.ops[op].out_start
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        s.storages[s.tensors[s.slots[slot].argument].storage].children_made += results
    for tensor in range(s.ops[op].out_start, s.ops[op].out_end):
        storage = s.tensors[tensor].storage
        new = s.storages[storage].views_made == 0
        first = True
        for sibling in range(s.ops[op].out_start, tensor):
            if s.tensors[sibling].storage == storage:
                first = False
        if first:  # an operator that makes several views of a storage costs once
            s.storages[storage].cost += s.ops[op].cost
        s.storages[storage].views_made += 1
        s.storages[storage].parents_made += arguments
        s.storages[storage].references += 1
        s.tensors[tensor].references = 1
        if new and rules.cost == SETS:
            new_node(s, storage, 0)
        if rules.policy == BANISH:
            for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
                add_dependent(s, tensor, slot)
        if not new:
            changed(s, rules, storage, True)
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        changed(s, rules, s.tensors[s.slots[slot].argument].storage, True)


@inlined
def enter(s: State, rules: Rules, tensor: int, depth: int, first: bool) -> None:
    """Begin to perform the operator of `tensor`: mark its arguments as used, lock those that are there, list the others."""
    op = s.tensors[tensor].op
    record(s, rules, E_PENDING, tensor)
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        storage = s.tensors[s.slots[slot].argument].storage
        if rules.policy != BANISH or s.storages[storage].references > 0:
            s.storages[storage].accessed = s.run[0].clock
        if s.storages[storage].banished == 0:
            record(s, rules, E_USE if first else E_REUSE, s.slots[slot].argument)
    top = s.run[0].aux_top
    s.ops[depth].frame_tensor = tensor
    s.ops[depth].frame_next = top
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        argument = s.slots[slot].argument
        if s.tensors[argument].defined:
            lock(s, rules, s.tensors[argument].storage)
        else:
            s.aux[top] = argument
            top += 1
    s.ops[depth].frame_end = top
    s.run[0].aux_top = top


@inlined
def make_room(s: State, rules: Rules, size: int) -> bool:
    """Evict until `size` fits; return whether it does."""
    while s.run[0].memory + size > rules.budget:
        if s.run[0].pool_size == 0:
            return False
        s.run[0].evictions += 1
        if rules.choice == RANDOM or rules.sampling or rules.ignore_small:
            victim = choose_otherwise(s, rules)
        else:
            victim = choose(s, rules)
        evict(s, rules, victim, E_EVICT)
    return True


@inlined
def settle(s: State, tensor: int) -> bool:
    """A tensor has just been computed; return whether its storage came into memory with it."""
    storage = s.tensors[tensor].storage
    s.tensors[tensor].defined = 1
    if s.storages[storage].status == RESIDENT:
        return False
    s.storages[storage].status = RESIDENT
    return True


@inlined
def arrive(s: State, rules: Rules, storage: int) -> None:
    """A storage has just come into memory: it may be evicted again."""
    pool_add(s, storage)
    if rules.cost == SETS:
        leave_set(s, storage)
    changed(s, rules, storage, False)


@inlined
def execute(s: State, rules: Rules, tensor: int, first: bool) -> bool:
    """Run the operator of `tensor`, whose arguments are all there and locked; return whether there was room."""
    op = s.tensors[tensor].op
    record(s, rules, E_PRESSURE, s.ops[op].total)
    if not make_room(s, rules, s.ops[op].total):
        return False
    s.run[0].clock += s.ops[op].cost
    s.run[0].memory += s.ops[op].total
    s.run[0].peak = max(s.run[0].peak, s.run[0].memory)
    if not first:
        s.run[0].recompute_cost += s.ops[op].cost
        s.run[0].recomputed += 1
    fresh = s.run[0].aux_top  # what was undefined, then which of these storages were away
    top = fresh
    record(s, rules, E_COMPUTE if first else E_RECOMPUTE, tensor)
    for sibling in range(s.ops[op].out_start, s.ops[op].out_end):
        if sibling == tensor:
            continue
        if s.tensors[sibling].defined:  # computed a second time, and thrown away
            s.run[0].memory -= s.tensors[sibling].size
        else:
            record(s, rules, E_ALSO_COMPUTED if first else E_ALSO_RECOMPUTED, sibling)
            s.aux[top] = sibling
            top += 1
    s.aux[top] = tensor
    top += 1
    came = 0
    for place in range(fresh, top):
        if settle(s, s.aux[place]):
            s.aux[top + came] = s.tensors[s.aux[place]].storage
            came += 1
    for place in range(top, top + came):
        arrive(s, rules, s.aux[place])
    if rules.policy == BANISH:
        release_arguments_banishing(s, rules, op, tensor, fresh, top)
    else:
        for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
            unlock(s, rules, s.tensors[s.slots[slot].argument].storage)
    return True


@compiled
def release_arguments_banishing(s: State, rules: Rules, op: int, tensor: int, fresh: int, top: int) -> None:
    """Unlock an operator's arguments and banish those that nothing needs any more.

    A banished argument leaves the list that is being walked; being faithful means that the one behind it is then passed over.
    """
    begin = top
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        if s.storages[s.tensors[s.slots[slot].argument].storage].banished == 0:
            s.aux[top] = slot
            top += 1
    place = begin
    while place < top:
        slot = s.aux[place]
        storage = s.tensors[s.slots[slot].argument].storage
        place += 1
        if s.storages[storage].banished:
            continue
        unlock(s, rules, storage)
        for made in range(fresh, begin):
            drop_dependent(s, s.aux[made], slot)
        if try_banish(s, rules, storage) and rules.faithful and storage != s.tensors[tensor].storage:
            kept = begin
            for other in range(begin, top):
                if s.tensors[s.slots[s.aux[other]].argument].storage != storage:
                    s.aux[kept] = s.aux[other]
                    kept += 1
            top = kept


@compiled
def perform(s: State, rules: Rules, tensor: int, first: bool) -> int:
    """Compute a tensor, rematerialising what it needs; return PASS, OUT_OF_MEMORY or THRASH."""
    depth = 0
    enter(s, rules, tensor, depth, first)
    while depth >= 0:
        place = s.ops[depth].frame_next
        if place < s.ops[depth].frame_end:
            argument = s.aux[place]
            if s.tensors[argument].defined:
                lock(s, rules, s.tensors[argument].storage)
                s.ops[depth].frame_next = place + 1
            else:
                depth += 1
                enter(s, rules, argument, depth, False)
            continue
        if not execute(s, rules, s.ops[depth].frame_tensor, first and depth == 0):
            return OUT_OF_MEMORY
        if s.run[0].recompute_cost > rules.recompute_limit:
            return THRASH
        depth -= 1
        if depth >= 0:
            s.run[0].aux_top = s.ops[depth].frame_end
    s.run[0].aux_top = 0
    return PASS


@inlined
def compute(s: State, rules: Rules, op: int) -> int:
    """Run an operator for the first time."""
    issue(s, rules, op)
    result = perform(s, rules, s.ops[op].out_start, True)
    if result == PASS:
        for tensor in range(s.ops[op].out_start, s.ops[op].out_end):
            s.storages[s.tensors[tensor].storage].accessed = s.run[0].clock
            record(s, rules, E_BIRTH, tensor)
        s.run[0].ops_done += 1
    return result


@inlined
def release(s: State, rules: Rules, tensor: int) -> None:
    """Drop an external reference, and with the last one what the policy says."""
    storage = s.tensors[tensor].storage
    s.storages[storage].references -= 1
    s.tensors[tensor].references -= 1
    if s.tensors[tensor].references == 0:
        record(s, rules, E_DEATH, tensor)
    if s.storages[storage].references > 0:
        return
    if rules.policy == BANISH:
        try_banish(s, rules, storage)
    elif rules.policy == EAGER and s.storages[storage].status == RESIDENT and s.storages[storage].pinned == 0:
        s.run[0].deallocations += 1
        evict(s, rules, storage, E_FREE)


@compiled
def run(s: State, rules: Rules) -> int:
    """Replay the schedule; return PASS, OUT_OF_MEMORY, THRASH, or GROW when an array was too short and the run does not count."""
    result = PASS
    for item in range(len(s.items)):
        step = s.items[item].step
        operand = s.items[item].operand
        if step == 0:
            result = compute(s, rules, operand)
        elif step == 1:
            s.storages[s.tensors[operand].storage].references += 1
            s.tensors[operand].references += 1
        elif step == 2:
            if s.tensors[operand].defined == 0:
                result = perform(s, rules, operand, False)
            if result == PASS:
                pin(s, rules, s.tensors[operand].storage)
        else:
            release(s, rules, operand)
        if s.run[0].nodes > len(s.nodes) or s.run[0].draws > len(s.draws):
            return GROW
        if result != PASS:
            break
    return GROW if rules.events and s.run[0].events > len(s.events) else result
