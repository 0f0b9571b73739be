"""Assigns a rank's batches to passes over the samples, and decides which passes train."""

from collections import Counter
from itertools import chain

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.repeated_regions import numbers_of_repeats, regions_of
from iotwin.benchmark.fit.logged_phases import is_within
from iotwin.benchmark.fit.recorded.process_tree import Tree
from iotwin.benchmark.fit.recorded.taken_times import depth_of
from iotwin.trace_store import schema
from iotwin.workload_yaml.recorded_structure import MOST_PREFETCHED

_Ints = NDArray[np.int64]
_SAME_SET = 0.5  # passes read one set of samples if they share this much of the smaller pass's bytes


def pass_numbers(own: pd.DataFrame, evaluations: pd.DataFrame) -> _Ints:
    """Return the index of the pass of each batch of a rank (in the order of the requests).

    `evaluations`: the logged evaluations (start_ns, end_ns).


    A pass begins when two conditions hold. First, all batches requested before have been delivered (and read by the rank's main
    thread, if its reads are known). Second, one of these things happens:

    * a loader gets a request that had none in the present pass, or
    * a loader has received another message in between.

    If loaders serve several passes without other messages, or if evaluations are logged, a pass also begins when the rank
    requests as many batches at once as are ever in flight. This happens within a pass, too: a fast rank takes all delivered
    batches, and requests as many, before its loaders deliver the next one.

    A pass does not begin while a loader that started before the present pass has had no request yet. If all batches of a pass are
    requested at once, a pass begins with this series of requests. Loaders may answer the first before the last is made.

    If a rank reads its batches itself, a pass begins where a logged evaluation begins or ends. It also begins when a batch reads
    again what passes of its kind have read.
    """
    if "key" in own:
        evaluates = is_within(own["delivered_ns"].to_numpy(np.int64), evaluations)
        numbers = np.zeros(len(own), np.int64)
        for kind in (False, True):
            numbers[evaluates == kind] = numbers_of_repeats(own["key"][evaluates == kind].tolist())
        begins = np.append(False, (np.diff(numbers) != 0) | (np.diff(evaluates) != 0))
        return np.cumsum(begins)
    requested, delivered, loader = (own[name].to_numpy(np.int64) for name in ("requested_ns", "delivered_ns", "loader"))
    depth = depth_of(requested, delivered)
    # If storage stalls, all batches under way are requested before the next delivery, but the rank has not read those before.
    done = np.maximum(delivered, own["read_ns"].fillna(0).to_numpy(np.int64))
    before = np.append(0, np.maximum.accumulate(done)[:-1])
    following = np.minimum.accumulate(delivered[::-1])[::-1]  # the first delivery of this batch or a later one
    at_once = np.searchsorted(np.maximum.accumulate(requested), following) - np.arange(len(own))
    if depth > (most := MOST_PREFETCHED * len(np.unique(loader))):
        return _numbers_of_rows(requested >= before, at_once, most)
    found = _numbers_of_loaders(own, depth, before, np.zeros(len(own), np.bool_))
    served = pd.Series(found).groupby(loader).nunique()
    if found[-1] and evaluations.empty and (served.max() == 1 or _are_messaged(own, found)):
        return found
    return _numbers_of_loaders(own, depth, before, at_once >= max(depth, 2))


def are_interruptions(own: pd.DataFrame, evaluations: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of a rank's batches, in the order of the requests: True if a batch's pass interrupts another pass.

    A job may evaluate after every hundred steps, while loaders still hold batches of the epoch. All loaders of a pass deliver
    through one pipe. The evaluation's batches are requested and read between two requests, or reads, of batches of the epoch.
    """
    found = np.zeros(len(own), np.bool_)
    if "key" in own:
        return _read_within_passes(own["key"].tolist()) if evaluations.empty else found
    if own["queue"].nunique() < 2:
        return found
    moments = own[["queue", "requested_ns", "read_ns"]].melt("queue", value_name="at_ns", ignore_index=False).dropna()
    lives = moments.groupby("queue")["at_ns"].agg(["min", "max"])
    overlapping = [((lives["min"] < life["max"]) & (lives["max"] > life["min"])).sum() > 1 for _, life in lives.iterrows()]
    outer = lives.index[overlapping]
    if outer.empty:
        return found
    number = pd.concat([pd.Series(pass_numbers(part, evaluations), part.index) for _, part in own.groupby("queue")])
    moments["number"] = number[moments.index]
    passes = moments.groupby(["queue", "number"])["at_ns"].agg(["min", "max"])
    inside = np.zeros(len(passes), np.bool_)
    for queue in outer:
        mine = moments[moments["queue"] == queue].sort_values("at_ns")
        at = np.searchsorted(mine["at_ns"].to_numpy(), passes.to_numpy())
        of_pass = np.pad(mine["number"].to_numpy(), 1, constant_values=(-1, -2))
        other = passes.index.get_level_values("queue") != queue
        inside |= other & (at[:, 0] == at[:, 1]) & (of_pass[at[:, 0]] == of_pass[at[:, 0] + 1])
    key = pd.MultiIndex.from_arrays([own["queue"], number[own.index]])
    return key.isin(passes.index[inside])


def _read_within_passes(keys: list[set[int]]) -> NDArray[np.bool_]:
    """Return a mask of the batches that interrupt a pass of a rank that reads itself. `keys`: the regions that each batch reads.

    Interrupting batches read regions that are read more often than most, and each interruption reads all of these. If the job
    ended within an epoch, some regions of the epoch have been read once more than others.
    """
    counts = Counter(chain.from_iterable(keys))
    usual = Counter(counts.values()).most_common(1)[0][0]
    often = np.array([min(map(counts.__getitem__, key), default=0) > usual + 1 for key in keys])
    if not often.any():
        return often
    numbers = np.full(len(keys), -1)
    numbers[~often] = numbers_of_repeats([key for key, other in zip(keys, often.tolist(), strict=True) if not other])
    read, inside = set[frozenset[int]](), False
    for run in np.split(np.flatnonzero(often), np.flatnonzero(np.diff(np.flatnonzero(often)) > 1) + 1):
        read.add(frozenset(chain.from_iterable(keys[each] for each in run.tolist())))
        inside |= run[0] > 0 and run[-1] + 1 < len(keys) and numbers[run[0] - 1] == numbers[run[-1] + 1]
    return often if inside and len(read) == 1 else np.zeros(len(keys), np.bool_)


def _are_messaged(own: pd.DataFrame, numbers: _Ints) -> bool:
    """Return True if each loader has received another message between its batches of one pass and those of the next."""
    ordered = own.assign(number=numbers).sort_values(["loader", "turn"], kind="stable")
    loader, turn, number = (ordered[name].to_numpy(np.int64) for name in ("loader", "turn", "number"))
    later = (loader[1:] == loader[:-1]) & (number[1:] != number[:-1])
    return bool((np.diff(turn)[later] > 1).all())


def _numbers_of_loaders(own: pd.DataFrame, depth: int, before: _Ints, bursts: NDArray[np.bool_]) -> _Ints:
    """Return the index of the pass of each batch. `before`: when all batches requested earlier had been delivered and read.

    `bursts`: batches that may begin a pass even if their loader has received no other message.
    """
    requested, loader, turn, begun = (own[name].to_numpy(np.int64) for name in ("requested_ns", "loader", "turn", "begun_ns"))
    last_turn = dict[int, int]()
    number, first, numbers = 0, 0, np.zeros(len(own), np.int64)
    for row, (asked, turned) in enumerate(zip(loader.tolist(), turn.tolist(), strict=True)):
        skipped = last_turn.get(asked, -2) != turned - 1
        # The first requests of a pass come from several threads of the rank: one may be answered before all are made.
        later = loader[row : first + depth]
        starting = any(each not in last_turn for each in later[begun[row : first + depth] <= requested[first]].tolist())
        other = asked not in loader[first:row]
        if row and requested[row] >= before[row] and not starting and (skipped or other or bursts[row]):
            number, first = number + 1, row
        last_turn[asked] = turned
        numbers[row] = number
    return numbers


def _numbers_of_rows(idle: NDArray[np.bool_], at_once: _Ints, most: int) -> _Ints:
    """Return the index of the pass of each batch, if a pass begins with more than `most` successive requests while loaders idle.

    `idle`: True if all batches requested earlier had been delivered and read. `at_once`: requests until the next delivery.
    """
    first, numbers = 0, np.zeros(len(idle), np.int64)
    for row in np.flatnonzero(idle).tolist():
        if row - first >= most and at_once[row : row + most].max() > most:
            first = row
            numbers[row:] += 1
    return numbers


def are_training(evaluations: pd.DataFrame, calls: pd.DataFrame, passes: list[pd.DataFrame]) -> list[bool]:
    """Return, by pass, True if it trains.

    Passes outside of the logged `evaluations` (start_ns, end_ns) train. If no evaluation is logged, the passes over one sample
    set
    train: the set of which most bytes are read.
    """
    if len(evaluations):
        middles = np.array([int(part["taken_ns"].iloc[len(part) // 2]) for part in passes], np.int64)
        return [not evaluates for evaluates in is_within(middles, evaluations).tolist()]
    reads = calls[(calls["batch"] >= 0) & calls["op"].isin(schema.READ_OPS)]
    numbers = [int(part["number"].iloc[0]) for part in passes]  # ranks share the samples of a pass
    number_of = np.full(1 + max(int(part["batch"].max()) for part in [*passes, calls]), -1, np.int64)
    for part, number in zip(passes, numbers, strict=True):
        number_of[part["batch"]] = number
    by_pass = reads["result"].groupby([number_of[reads["batch"]], regions_of(reads)]).sum()
    sets: list[tuple[pd.Series, set[int]]] = []  # bytes by region, and passes, of each set of samples
    for number in sorted(set(numbers) & set(by_pass.index.get_level_values(0))):
        here = by_pass[number]
        at = next((i for i, (there, _) in enumerate(sets) if _overlap(here, there) > _SAME_SET), len(sets))
        there, members = sets[at] if at < len(sets) else (here[:0], set())
        sets[at : at + 1] = [(here.add(there, fill_value=0), members | {number})]
    trained = max(sets, key=lambda each: float(each[0].sum()))[1] if sets else set(numbers)
    return [number in trained for number in numbers]


def _overlap(a: pd.Series, b: pd.Series) -> float:
    """Return the share of the smaller pass's bytes that lies in regions which both passes read. `a`, `b`: bytes by region."""
    small, large = (a, b) if a.sum() < b.sum() else (b, a)
    return float(small[small.index.isin(large.index)].sum() / small.sum())


def begin_of_pass(tree: Tree, before: pd.DataFrame, part: pd.DataFrame) -> int:
    """Return when a pass began: with its first request or, if the rank started a loader for the pass before, with this start.

    `before`: the batches of the pass before.
    """
    started = [tree.begin_ns[loader] for loader in part["loader"].unique().tolist()]
    last, first = int(before["requested_ns"].iloc[-1]), int(part["requested_ns"].iloc[0])
    begun: int = min([first, *(at for at in started if last < at)])
    return begun
