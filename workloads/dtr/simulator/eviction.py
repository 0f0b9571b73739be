"""The simulator's event loop: runs a schedule under a memory budget, and evicts and rematerialises tensors as needed.

The loop is compiled by numba, or runs as plain Python. Its state is a few arrays of records. Its clock is an integer in the unit
of the operators' costs. Explicit stacks replace recursion. The rules (docs/dtr.md) come from the paper's appendix C and from the
simulator of its authors, here called "the original".
"""

import math
from typing import Any, NamedTuple

from iotwin.workloads.dtr.simulator.compiler import compiler_of
from iotwin.workloads.dtr.simulator.kernel_codes import (
    ANCESTORS,
    BANISH,
    E_ALSO_COMPUTED,
    E_ALSO_RECOMPUTED,
    E_BANISH,
    E_BIRTH,
    E_COMPUTE,
    E_DEATH,
    E_EVICT,
    E_FREE,
    E_LOCK,
    E_PENDING,
    E_PIN,
    E_PRESSURE,
    E_RECOMPUTE,
    E_REUSE,
    E_UNLOCK,
    E_USE,
    EAGER,
    GROW,
    LEAST_RECENT,
    LOCAL,
    NEIGHBOURHOOD,
    OUT_OF_MEMORY,
    PASS,
    RANDOM,
    SETS,
    THRASH,
    UNION,
    UNIT,
)

compiled = compiler_of(__name__, internal=True)
inlined = compiler_of(__name__, inline=True)

Records = Any
Numbers = Any  # array of int64 under numba, list of int without it

# Sides of a storage: the storages that it was computed from (UP), and those computed from it (DOWN).
UP, DOWN = 0, 1
WORD = 60  # storages per word of a row of `bits` under numba; in plain Python, a row is one long integer
# States of a storage.
EVICTED, RESIDENT, UNCOMPUTED = 0, 1, 2
NEVER = -(1 << 61)

# The fields of the records in each array of KernelState.
FIELDS = {
    "run": (
        "clock", "memory", "peak", "recompute_cost", "evictions", "deallocations", "recomputed", "accesses", "evaluations",
        "pool_size", "banishments", "nodes", "events", "draws", "stamp", "aux_top", "ops_done",
        # While a new operator waits for arguments: 1 + the index of its newest storage, and its cost per new storage. Else 0.
        "pending", "pending_cost",
        "words",  # length of a row of the array `bits`, in words; 0 if no rows of reachable storages are kept
        "word",  # number of bits of a word
    ),
    "storages": (
        # Links of the list of evictable storages, oldest first. `after` is -1 outside it. The array's last record is its head.
        "after", "before",
        "accessed", "size", "cost", "near_valid", "near_start", "near_end", "near_edges", "node",
        "status", "banished", "stamp", "child_start", "children_made", "parent_start", "parents_made",
        "locks", "references", "pinned", "view_start", "views_made", "dependents",
        # Three work lists, stored here because each needs room for all storages. Their element i is not about storage i.
        "stacked", "found", "candidate",
    ),
    # The evicted storages that each storage reaches along edges of the graph: first a record per storage for the side UP, then
    # one per storage for DOWN. `cost` is their total cost, `edges` the edges on the way, `degree` the storage's own edges.
    # The storage's row in `bits` marks the storages reached; words outside `low` to `high` are unused.
    # `aware` equals `pending` if the original counts the pending storages as reached, too.
    "reach": ("valid", "cost", "edges", "degree", "low", "high", "at", "aware"),
    "tensors": ("op", "storage", "size", "defined", "references", "dependent_start"),
    "ops": ("cost", "total", "arg_start", "arg_end", "out_start", "out_end", "frame_tensor", "frame_next", "frame_end"),
    "slots": ("argument", "first"),  # an operator's arguments; `first`: position of its first argument with the same storage
    "items": ("step", "operand"),
    "nodes": ("parent", "sum"),  # nodes of a union-find forest whose trees are the sets of the numerator SETS
    "events": ("kind", "clock", "ident"),
}  # fmt: skip


class KernelState(NamedTuple):
    """The state of a run. FIELDS names the fields of each array of records: structs under numba, objects in plain Python."""

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
    near: Numbers  # the evicted neighbours of each storage, from index `near_start` to `near_end` of the storage's record
    # Three lists per storage: the tensors that are views of it, the storages it was computed from, the storages computed from
    # it. Each list follows the order in which the model calls its operators.
    links: Numbers
    # An entry per tensor and argument of its operator: 1 if the tensor is counted in `dependents` of the argument's storage,
    # because the tensor is evicted or not yet computed.
    dependent: Numbers
    aux: Numbers  # stack of argument tensors that must be computed before the operators that wait for them
    draws: Numbers  # random numbers in [0, 1)


class Rules(NamedTuple):
    """The parameters of a run: budget, limits and heuristic."""

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
    faithful: int  # 1: repeat three mistakes of the original (see `away`, `learn` and `release_arguments_banishing`)


@inlined
def record(s: KernelState, rules: Rules, kind: int, ident: int) -> None:
    """Append an event to the array of events. If the array is full, only count the event; `run` then returns GROW."""
    if rules.events:
        index = s.run[0].events
        if index < len(s.events):
            s.events[index].kind = kind
            s.events[index].clock = s.run[0].clock
            s.events[index].ident = ident
        s.run[0].events = index + 1


@inlined
def pool_add(s: KernelState, storage: int) -> None:
    """Append a storage to the list of evictable storages, unless it is in the list."""
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
def pool_remove(s: KernelState, storage: int) -> None:
    """Remove a storage from the list of evictable storages, if it is in the list."""
    after = s.storages[storage].after
    if after >= 0:
        before = s.storages[storage].before
        s.storages[before].after = after
        s.storages[after].before = before
        s.storages[storage].after = -1
        s.run[0].pool_size -= 1


@inlined
def lock(s: KernelState, rules: Rules, storage: int) -> None:
    """Add a lock to a storage. A storage with a lock cannot be evicted."""
    if s.storages[storage].locks == 0:
        pool_remove(s, storage)
    s.storages[storage].locks += 1
    record(s, rules, E_LOCK, storage)


@inlined
def unlock(s: KernelState, rules: Rules, storage: int) -> None:
    """Remove a lock from a storage, which can be evicted when it has no locks."""
    s.storages[storage].locks -= 1
    if s.storages[storage].locks == 0:
        pool_add(s, storage)
        record(s, rules, E_UNLOCK, storage)


@inlined
def pin(s: KernelState, rules: Rules, storage: int) -> None:
    """Lock a storage permanently."""
    if s.storages[storage].pinned == 0:
        lock(s, rules, storage)
        s.storages[storage].pinned = 1
        record(s, rules, E_PIN, storage)


@inlined
def hidden(s: KernelState, here: int, other: int) -> bool:
    """Return True if the graph's edge from the storage `here` to the storage `other` was cut.

    Banishing a storage (freeing it for good) cuts the edges to it, except from storages banished earlier. A banished storage can
    be in memory again, if another result of its operator is recomputed.
    """
    banished = s.storages[other].banished
    return banished > 0 and (s.storages[here].banished == 0 or banished < s.storages[here].banished)


@inlined
def next_stamp(s: KernelState) -> int:
    """Return a number that no storage has as its `stamp`."""
    s.run[0].stamp += 1
    return s.run[0].stamp


@inlined
def edges_of(s: KernelState, storage: int, side: int) -> tuple[int, int]:
    """Return (begin, end) in `links` of the storages from which `storage` was computed (UP), or the reverse (DOWN)."""
    if side == DOWN:
        begin = s.storages[storage].child_start
        return begin, begin + s.storages[storage].children_made
    begin = s.storages[storage].parent_start
    return begin, begin + s.storages[storage].parents_made


@inlined
def away(s: KernelState, storage: int, pending: int) -> bool:
    """Return True if a storage is evicted. If `pending` is 1, also return True if it was never computed, as the original does."""
    status = s.storages[storage].status
    return status == EVICTED or (status == UNCOMPUTED and pending == 1)


@compiled
def search(s: KernelState, base: int, side: int, mark: int, pending: int) -> tuple[int, int, int]:
    """Search from `base` along edges to one side, through storages that are not in memory (see `away`).

    Return (total cost, edges seen, number) of the storages found, which are listed in `found`. A storage whose `stamp` is `mark`
    is ignored; the search stamps those that it finds.
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
            if away(s, other, pending) and s.storages[other].stamp != mark:
                s.storages[other].stamp = mark
                cost += s.storages[other].cost
                s.storages[top].stacked = other
                top += 1
                s.storages[found].found = other
                found += 1
    return cost, edges, found


@compiled
def follow(s: KernelState, storage: int, side: int) -> None:
    """Compute the `reach` records of `storage` and of the evicted storages that it reaches, depth first. They cache searches.

    Every edge of the graph must lead from a storage to one with a larger index.
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
def passes(s: KernelState, here: int, other: int) -> bool:
    """Return True if a search of evicted neighbours goes from storage `here` on to storage `other`."""
    if s.storages[other].status != EVICTED or other == here:
        return False
    return not (s.storages[other].banished and hidden(s, here, other))


@compiled
def unite(s: KernelState, storage: int, side: int) -> None:
    """Set the `reach` record of `storage` from the `reach` records of its evicted neighbours, which must be valid.

    Copies the row of bits of the neighbour that reaches most storages, and adds the bits that only other neighbours' rows have.
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
def absorb(s: KernelState, row: int, other: int, base: int) -> tuple[int, int]:
    """Add the storage `other` and all storages that `other` reaches to the row of bits at index `row`, which lacks `other`.

    Return (total cost, total edges) of the storages added. `base` is the index of the first `reach` record of the side.
    """
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
def forget(s: KernelState, storage: int, side: int) -> None:
    """Invalidate the cached searches that pass through `storage`. They begin at storages on its `side`, and go to the other side.

    With rows of bits, the walk does not continue past an evicted storage whose own search is invalid. Searches through that
    storage use its result, so they are invalid already.
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
            if s.storages[other].status == EVICTED and (s.reach[base + other].valid or s.run[0].words == 0):
                s.storages[top].stacked = other
                top += 1
            s.reach[base + other].valid = 0


@compiled
def forget_neighbours(s: KernelState, storage: int) -> None:
    """For all neighbours of `storage`, invalidate their cached lists of evicted neighbours."""
    for side in range(2):
        begin, end = edges_of(s, storage, side)
        for edge in range(begin, end):
            s.storages[s.links[edge]].near_valid = 0


@inlined
def changed(s: KernelState, rules: Rules, storage: int, gained: bool) -> None:
    """Invalidate cached results that depend on `storage`, after it was evicted or recomputed or `gained` a view or an edge."""
    if rules.cost == SETS:
        s.storages[storage].near_valid = 0
        if not gained:
            forget_neighbours(s, storage)
    elif rules.cost == NEIGHBOURHOOD or rules.cost == ANCESTORS:
        forget_reached(s, rules, storage, gained)


@compiled
def forget_reached(s: KernelState, rules: Rules, storage: int, gained: bool) -> None:
    """Invalidate the cached searches through `storage`; if it `gained` a view or an edge, also those that start there."""
    if gained or s.run[0].words == 0:
        s.reach[storage].valid = 0
        s.reach[len(s.storages) + storage].valid = 0
    if gained and s.storages[storage].status != EVICTED:
        return  # other storages' searches end at a storage that is not evicted
    forget(s, storage, DOWN)
    if rules.cost == NEIGHBOURHOOD:
        forget(s, storage, UP)


@compiled
def sources(s: KernelState, base: int) -> int:
    """List in `found`: `base`, and the storages with a path to `base` through evicted storages. Return their number."""
    mark = next_stamp(s)
    s.storages[base].stamp = mark
    s.storages[0].found = base
    index, found = 0, 1
    while index < found:
        here = s.storages[index].found
        index += 1
        if here != base and s.storages[here].status != EVICTED:
            continue
        begin, end = edges_of(s, here, UP)
        for edge in range(begin, end):
            other = s.links[edge]
            if s.storages[other].stamp != mark and not (s.storages[other].banished and hidden(s, here, other)):
                s.storages[other].stamp = mark
                s.storages[found].found = other
                found += 1
    return found


@compiled
def learn(s: KernelState, storage: int, goal: int) -> None:
    """Mark as `aware` of the pending results all `sources` of `storage` that are also sources of `goal`.

    This repeats a mistake of the original, which caches the storages that each storage reaches. The original adds an operator's
    results to its graph before it recomputes the operator's arguments, and treats results that are not in memory as evicted. So
    it counts results that were never computed, but only in searches made after it added the results. It makes these searches from
    all sources of a storage that comes back into memory.
    """
    down, pending = len(s.storages), s.run[0].pending
    for index in range(sources(s, storage)):
        s.reach[down + s.storages[index].found].aware = -pending
    for index in range(sources(s, goal)):
        source = down + s.storages[index].found
        if s.reach[source].aware == -pending:
            s.reach[source].aware = pending


@inlined
def reached(s: KernelState, storage: int, side: int) -> int:
    """Return the total cost of the evicted storages that `storage` reaches on a side.

    The accesses that a search takes are added to the run's count, even if the cost comes from the cache.
    """
    index = side * len(s.storages) + storage
    if s.reach[index].valid == 0:
        if s.run[0].words:
            follow(s, storage, side)
        else:
            cost, edges, _ = search(s, storage, side, next_stamp(s), 0)
            s.reach[index].cost, s.reach[index].edges, s.reach[index].valid = cost, edges, 1
    s.run[0].accesses += s.reach[index].edges
    return s.reach[index].cost


@compiled
def neighbours(s: KernelState, rules: Rules, storage: int) -> int:
    """Cache in `near` the neighbours of `storage` that are not in memory; return their number. Every edge counts as an access."""
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
                if away(s, other, rules.faithful) and s.storages[other].stamp != mark:
                    s.storages[other].stamp = mark
                    s.near[found] = other
                    found += 1
        s.storages[storage].near_valid, s.storages[storage].near_edges = 1, edges
        s.storages[storage].near_end = found
    s.run[0].accesses += s.storages[storage].near_edges
    return s.storages[storage].near_end - s.storages[storage].near_start


@inlined
def find(s: KernelState, node: int) -> int:
    """Return the root of `node` in the union-find forest, and shorten the path. Each node on the path counts as an access."""
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
def new_node(s: KernelState, storage: int, cost: int) -> None:
    """Make a new set of evicted storages with the total cost `cost`, which contains only `storage`."""
    node = s.run[0].nodes
    s.run[0].nodes = node + 1
    if node >= len(s.nodes):
        node = len(s.nodes) - 1  # the array is full: the run will be repeated with a larger one
    s.nodes[node].parent = -1
    s.nodes[node].sum = cost
    s.storages[storage].node = node


@compiled
def join_sets(s: KernelState, rules: Rules, storage: int) -> None:
    """Join the set of a storage that was just evicted with the sets of its evicted neighbours (union-find)."""
    new_node(s, storage, s.storages[storage].cost)
    found, start = neighbours(s, rules, storage), s.storages[storage].near_start
    for index in range(start, start + found):
        left = find(s, s.storages[s.near[index]].node)
        right = find(s, s.storages[storage].node)
        if left != right:
            s.nodes[left].parent = right
            s.nodes[right].sum += s.nodes[left].sum


@inlined
def leave_set(s: KernelState, storage: int) -> None:
    """Remove a storage that came back into memory from its set. The other storages of the set remain together."""
    find(s, s.storages[storage].node)
    s.nodes[find(s, s.storages[storage].node)].sum -= s.storages[storage].cost
    s.storages[storage].node = -1


@inlined
def sets_cost(s: KernelState, rules: Rules, storage: int) -> int:
    """Return the total cost of the sets that contain an evicted neighbour of `storage`. Each set counts once."""
    found, start = neighbours(s, rules, storage), s.storages[storage].near_start
    distinct, cost = 0, 0
    for index in range(start, start + found):
        root = find(s, s.storages[s.near[index]].node)
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


@inlined
def weigh(rules: Rules, cost: int, size: int, staleness: int) -> float:
    """Return cost / (size * staleness), without the factors that `rules` switch off; infinity if the divisor is 0."""
    if rules.by_size == 0 and rules.by_staleness == 0:
        return float(cost)
    denominator = 1.0
    if rules.by_size:
        denominator *= float(size)
    if rules.by_staleness:
        denominator *= float(staleness)
    return float(cost) / denominator if denominator > 0.0 else math.inf


@inlined
def score(s: KernelState, rules: Rules, storage: int) -> float:
    """Return the score of a storage under the run's heuristic. The storage with the lowest score is evicted."""
    s.run[0].evaluations += 1
    s.run[0].accesses += 1
    accessed, cost = s.storages[storage].accessed, s.storages[storage].cost
    if rules.choice == LEAST_RECENT:
        return float(accessed)
    if rules.cost == UNIT:
        cost = 1
    elif rules.cost == SETS:
        cost += sets_cost(s, rules, storage)
    elif rules.cost == NEIGHBOURHOOD:
        cost += reached(s, storage, DOWN) + reached(s, storage, UP)
        if s.run[0].pending and s.reach[len(s.storages) + storage].aware == s.run[0].pending:
            cost += s.run[0].pending_cost
    elif rules.cost == ANCESTORS:
        cost += reached(s, storage, UP)
    elif rules.cost == UNION:
        more, accessed = union(s, rules, storage)
        cost += more
    return weigh(rules, cost, s.storages[storage].size, s.run[0].clock - accessed)


@compiled
def union(s: KernelState, rules: Rules, storage: int) -> tuple[int, int]:
    """Return (total cost of the evicted ancestors and descendants, each once; latest access of these and of `storage` itself)."""
    latest = s.storages[storage].accessed
    mark = next_stamp(s)
    cost, edges, found = search(s, storage, DOWN, mark, rules.faithful)
    for index in range(found):
        latest = max(latest, s.storages[s.storages[index].found].accessed)
    s.run[0].accesses += edges
    # Through views, a storage can be both a descendant and an ancestor. Then its cost counts once, but its edges twice.
    descendants = mark
    mark = next_stamp(s)
    top = 1
    s.storages[0].stacked = storage
    while top > 0:
        top -= 1
        here = s.storages[top].stacked
        for edge in range(s.storages[here].parent_start, s.storages[here].parent_start + s.storages[here].parents_made):
            other = s.links[edge]
            if s.storages[other].banished and hidden(s, here, other):
                continue
            s.run[0].accesses += 1
            if away(s, other, rules.faithful) and s.storages[other].stamp != mark:
                if s.storages[other].stamp != descendants:
                    cost += s.storages[other].cost
                s.storages[other].stamp = mark
                latest = max(latest, s.storages[other].accessed)
                s.storages[top].stacked = other
                top += 1
    return cost, latest


@compiled
def gather(s: KernelState, rules: Rules) -> int:
    """List in `candidate` the evictable storages; `ignore_small` omits those below 1 % of the mean size. Return their number."""
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
def draw(s: KernelState, below: int) -> int:
    """Return a random integer from 0 to `below` - 1."""
    index = s.run[0].draws
    s.run[0].draws = index + 1
    return int(s.draws[index % len(s.draws)] * below)


@inlined
def choose(s: KernelState, rules: Rules) -> int:
    """Return the storage to evict: the first one with score 0; if there is none, the last of those with the lowest score."""
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
def choose_alone(s: KernelState, rules: Rules) -> int:
    """Do the same as `choose`, but faster, for scores of one storage alone. The loop passes the state to no function."""
    storages, clock = s.storages, s.run[0].clock
    end = len(storages) - 1
    storage = victim = storages[end].after
    best, scored = math.inf, 0
    while storage != end:
        scored += 1
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
    s.run[0].evaluations += scored
    s.run[0].accesses += scored
    return victim


@compiled
def choose_otherwise(s: KernelState, rules: Rules) -> int:
    """Return the storage to evict if the rules choose at random, from a random `sampling`, or without small storages."""
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
    for index in range(samples):
        storage = s.storages[draw(s, count) if rules.sampling else index].candidate
        value = score(s, rules, storage)
        if value <= best:
            best, victim = value, storage
        if value == 0.0:
            break
    return victim


@inlined
def set_dependent(s: KernelState, tensor: int, slot: int, value: int) -> None:
    """Count `tensor` as an evicted dependent of the storage of its operator's argument `slot` if `value` is 1, not if it is 0.

    A tensor counts at most once per storage, and never for its own storage.
    """
    argument = s.slots[slot].argument
    if s.tensors[argument].storage == s.tensors[tensor].storage:
        return
    flag = s.tensors[tensor].dependent_start + s.slots[slot].first
    s.storages[s.tensors[argument].storage].dependents += value - s.dependent[flag]
    s.dependent[flag] = value


@compiled
def evict(s: KernelState, rules: Rules, storage: int, kind: int) -> None:
    """Evict a storage with all its views. `kind` is the kind of event to record."""
    s.storages[storage].status = EVICTED
    s.run[0].memory -= s.storages[storage].size
    pool_remove(s, storage)
    for view in range(s.storages[storage].view_start, s.storages[storage].view_start + s.storages[storage].views_made):
        tensor = s.links[view]
        s.tensors[tensor].defined = 0
        if rules.policy == BANISH:
            op = s.tensors[tensor].op
            for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
                set_dependent(s, tensor, slot, 1)
    record(s, rules, kind, storage)
    if rules.cost == SETS:
        join_sets(s, rules, storage)
    changed(s, rules, storage, False)
    if s.run[0].pending and s.reach[len(s.storages) + storage].aware == s.run[0].pending:
        learn(s, storage, storage)


@compiled
def try_banish(s: KernelState, rules: Rules, storage: int) -> bool:
    """Free a storage permanently if it has neither references nor evicted dependents. Return True if it was freed.

    Storages computed from it can then no longer be recomputed, so they are pinned.
    """
    if s.storages[storage].references > 0 or s.storages[storage].dependents > 0:
        return False
    if s.storages[storage].status == RESIDENT:
        if s.storages[storage].locks > 0:
            s.storages[storage].locks = 0
            record(s, rules, E_UNLOCK, storage)
        s.run[0].deallocations += 1
        evict(s, rules, storage, E_FREE)
    for view in range(s.storages[storage].view_start, s.storages[storage].view_start + s.storages[storage].views_made):
        tensor = s.links[view]
        op = s.tensors[tensor].op
        for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
            set_dependent(s, tensor, slot, 0)
    changed(s, rules, storage, False)
    s.run[0].banishments += 1
    s.storages[storage].banished = s.run[0].banishments
    for edge in range(s.storages[storage].child_start, s.storages[storage].child_start + s.storages[storage].children_made):
        child = s.links[edge]
        if child != storage and s.storages[child].banished == 0:
            pin(s, rules, child)
    record(s, rules, E_BANISH, storage)
    return True


@inlined
def issue(s: KernelState, rules: Rules, op: int) -> None:
    """Add the results of operator `op` to the graph, before they are computed for the first time."""
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
        if first:  # an operator that makes several views of a storage adds its cost to the storage once
            s.storages[storage].cost += s.ops[op].cost
        s.storages[storage].views_made += 1
        s.storages[storage].parents_made += arguments
        s.storages[storage].references += 1
        s.tensors[tensor].references = 1
        if new and rules.cost == SETS:
            new_node(s, storage, 0)
        if new and rules.cost == NEIGHBOURHOOD and rules.faithful:
            s.run[0].pending_cost = s.ops[op].cost + (s.run[0].pending_cost if s.run[0].pending else 0)
            s.run[0].pending = storage + 1
        if rules.policy == BANISH:
            for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
                set_dependent(s, tensor, slot, 1)
        if not new:
            changed(s, rules, storage, True)
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        changed(s, rules, s.tensors[s.slots[slot].argument].storage, True)


@inlined
def enter(s: KernelState, rules: Rules, tensor: int, depth: int, first: bool) -> None:
    """Begin the operator of `tensor`: set its arguments' access to now, lock those in memory, and append the others to `aux`."""
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
def make_room(s: KernelState, rules: Rules, size: int) -> bool:
    """Evict storages until `size` fits into the budget. Return False if it does not fit and nothing can be evicted."""
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
def settle(s: KernelState, tensor: int) -> bool:
    """Mark `tensor` and its storage as in memory. Return True if the storage was not in memory before."""
    storage = s.tensors[tensor].storage
    s.tensors[tensor].defined = 1
    if s.storages[storage].status == RESIDENT:
        return False
    s.storages[storage].status = RESIDENT
    return True


@inlined
def arrive(s: KernelState, rules: Rules, storage: int, first: bool) -> None:
    """Make evictable a `storage` that has just come into memory. `first` is True if it was never in memory before."""
    pool_add(s, storage)
    if rules.cost == SETS:
        leave_set(s, storage)
    elif first:
        return  # no search passes through a storage that was never evicted
    changed(s, rules, storage, False)
    if s.run[0].pending:
        learn(s, storage, s.run[0].pending - 1)


@inlined
def execute(s: KernelState, rules: Rules, tensor: int, first: bool) -> bool:
    """Run the operator of `tensor`, whose arguments must be in memory and locked. Return False if its results do not fit."""
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
    # From here on, `aux` holds the computed tensors, and after them the storages that came into memory.
    fresh = s.run[0].aux_top
    top = fresh
    record(s, rules, E_COMPUTE if first else E_RECOMPUTE, tensor)
    for sibling in range(s.ops[op].out_start, s.ops[op].out_end):
        if sibling == tensor:
            continue
        if s.tensors[sibling].defined:  # it is in memory, so its recomputed value is discarded
            s.run[0].memory -= s.tensors[sibling].size
        else:
            record(s, rules, E_ALSO_COMPUTED if first else E_ALSO_RECOMPUTED, sibling)
            s.aux[top] = sibling
            top += 1
    s.aux[top] = tensor
    top += 1
    came = 0
    for index in range(fresh, top):
        if settle(s, s.aux[index]):
            s.aux[top + came] = s.tensors[s.aux[index]].storage
            came += 1
    for index in range(top, top + came):
        arrive(s, rules, s.aux[index], first)
    if rules.policy == BANISH:
        release_arguments_banishing(s, rules, op, tensor, fresh, top)
    else:
        for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
            unlock(s, rules, s.tensors[s.slots[slot].argument].storage)
    return True


@compiled
def release_arguments_banishing(s: KernelState, rules: Rules, op: int, tensor: int, fresh: int, top: int) -> None:
    """Unlock the arguments of operator `op`, and banish those that are no longer needed.

    `aux` holds the tensors just computed from index `fresh` to `top`. If `faithful`, repeat a mistake of the original: it removes
    a banished argument from its list while it iterates over the list, and so skips the next argument.
    """
    begin = top
    for slot in range(s.ops[op].arg_start, s.ops[op].arg_end):
        if s.storages[s.tensors[s.slots[slot].argument].storage].banished == 0:
            s.aux[top] = slot
            top += 1
    index = begin
    while index < top:
        slot = s.aux[index]
        storage = s.tensors[s.slots[slot].argument].storage
        index += 1
        if s.storages[storage].banished:
            continue
        unlock(s, rules, storage)
        for made in range(fresh, begin):
            set_dependent(s, s.aux[made], slot, 0)
        if try_banish(s, rules, storage) and rules.faithful and storage != s.tensors[tensor].storage:
            kept = begin
            for other in range(begin, top):
                if s.tensors[s.slots[s.aux[other]].argument].storage != storage:
                    s.aux[kept] = s.aux[other]
                    kept += 1
            top = kept


@compiled
def perform(s: KernelState, rules: Rules, tensor: int, first: bool) -> int:
    """Compute `tensor`, and before it the evicted tensors that it needs. Return PASS, OUT_OF_MEMORY or THRASH."""
    depth = 0
    enter(s, rules, tensor, depth, first)
    while depth >= 0:
        index = s.ops[depth].frame_next
        if index < s.ops[depth].frame_end:
            argument = s.aux[index]
            if s.tensors[argument].defined:
                lock(s, rules, s.tensors[argument].storage)
                s.ops[depth].frame_next = index + 1
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
def compute(s: KernelState, rules: Rules, op: int) -> int:
    """Run an operator for the first time. Return PASS, OUT_OF_MEMORY or THRASH."""
    issue(s, rules, op)
    result = perform(s, rules, s.ops[op].out_start, True)
    s.run[0].pending = 0
    if result == PASS:
        for tensor in range(s.ops[op].out_start, s.ops[op].out_end):
            s.storages[s.tensors[tensor].storage].accessed = s.run[0].clock
            record(s, rules, E_BIRTH, tensor)
        s.run[0].ops_done += 1
    return result


@inlined
def release(s: KernelState, rules: Rules, tensor: int) -> None:
    """Remove an external reference to a tensor. After the storage's last one, the policy keeps, evicts or banishes it."""
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


@compiler_of(__name__)
def run(s: KernelState, rules: Rules) -> int:
    """Run the schedule. Return PASS, OUT_OF_MEMORY or THRASH; or GROW if an array was too short: repeat with longer arrays."""
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
