"""Finds hand-overs between threads of a process: one thread waited, not on a pipe, until another thread had done something."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.recorded.process_tree import Tree
from iotwin.workload_yaml.recording import Op

_BY_DESCRIPTOR = (Op.OPEN, Op.READ, Op.WRITE, Op.SYNC, Op.DATASYNC, Op.CLOSE, Op.MAP, Op.COPY, Op.COPY_TO, Op.TRUNCATE)
_SILENCE_NS = 1_000_000  # a process is silent if none of its threads makes a call for this long, which is longer than a hand-over
_FEWEST = 3  # least number of silences by which a thread is judged
_COLUMNS = ["source", "target", "done", "wanted"]  # thread `source` was done at `done` with what `target` wanted at `wanted` (ns)


def hand_overs(tree: Tree, rows: pd.DataFrame, begins: Mapping[int, int]) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return posts and waits as (thread, time, Op, channel), and the number of channels.

    `begins`: for each thread that is not a main thread, when it began. A thread's wait is inserted when its previous call ended
    or, if that is later, when the other thread was done. So the time from then to the thread's next call remains computation.
    """
    has_mates = (np.bincount(tree.process) > 1)[tree.process]  # by thread
    rows = rows[has_mates[rows["thread"]]]
    if rows.empty:
        return [], 0
    found = pd.concat([find(tree, rows) for find in (_of_feeders, _of_descriptors, _of_silences)]).drop_duplicates(
        ignore_index=True
    )
    idle = np.minimum(_idle_since(tree, rows, found, begins), found["wanted"])
    found = found.assign(at=np.maximum(found["done"], idle)).sort_values("wanted", kind="stable")
    added: list[tuple[int, int, int, int]] = []
    pairs = found.groupby(["source", "target"], sort=True)
    for channel, (_, own) in enumerate(pairs):
        source, target = own[["source", "target"]].iloc[0].tolist()
        posts = np.sort(own["done"].to_numpy(np.int64))
        added += [(source, done, int(Op.POST), channel) for done in posts.tolist()]
        # Posts are taken in the order in which they were made, so a wait for a post also takes the posts before it.
        needed = np.maximum.accumulate(np.searchsorted(posts, own["done"].to_numpy(np.int64), side="right"))
        waits = np.repeat(own["at"].to_numpy(np.int64), np.diff(needed, prepend=0))
        added += [(target, at, int(Op.WAIT), channel) for at in waits.tolist()]
    return added, len(pairs)


def _idle_since(tree: Tree, rows: pd.DataFrame, found: pd.DataFrame, begins: Mapping[int, int]) -> NDArray[np.int64]:
    """Return, for each hand-over, since when its target was idle: the end of its last call before that, or its begin."""
    idle = np.zeros(len(found), np.int64)
    for target in found["target"].unique().tolist():
        own, part = found[found["target"] == target], rows[rows["thread"] == target].sort_values("at", kind="stable")
        begun = begins.get(target, tree.begin_ns[tree.process[target]])
        ends = np.append(begun, np.maximum.accumulate(part["end"].to_numpy(np.int64)))
        idle[own.index] = ends[np.searchsorted(part["at"].to_numpy(np.int64), own["wanted"].to_numpy(np.int64))]
    return idle


def _of_feeders(tree: Tree, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the hand-overs to threads that only write to pipes, such as those of multiprocessing's queues.

    Such a thread may first try a temporary file, and remove it. Each of its writes to a pipe is assumed to follow one call: of
    the calls of the process's other threads that ended before the write, the last.
    """
    found: list[tuple[int, int, int, int]] = []
    only_writes = ((rows["op"] == Op.PIPE_WRITE) | _on_tried_files(rows)).groupby(rows["thread"]).all()
    for thread in only_writes.index[only_writes].tolist():
        process = tree.process[thread]
        mains = tree.main(process)
        if thread == mains:
            continue
        own = rows[(rows["thread"] == thread) & (rows["op"] == Op.PIPE_WRITE)]
        mates = [t for t in range(mains, len(tree.process)) if tree.process[t] == process and not only_writes.get(t, False)]
        others = rows[rows["thread"].isin(mates)].sort_values("end", kind="stable")
        ends, threads = others["end"].to_numpy(np.int64), others["thread"].to_numpy(np.int64)
        wanted = own["at"].to_numpy(np.int64)
        last = np.searchsorted(ends, wanted, side="right") - 1
        before = np.append(np.iinfo(np.int64).min, own["end"].to_numpy(np.int64)[:-1])
        kept = (last >= 0) & (ends[np.maximum(last, 0)] > before) if len(ends) else np.zeros(len(own), np.bool_)
        handed = zip(last[kept].tolist(), wanted[kept].tolist(), strict=True)
        found += [(int(threads[index]), thread, int(ends[index]), at) for index, at in handed]
    return pd.DataFrame(found, columns=_COLUMNS, dtype=np.int64)


def _on_tried_files(rows: pd.DataFrame) -> pd.Series:
    """Return the mask of calls on files that the same thread opens and removes."""
    on_file = rows["op"] < Op.PIPE_WRITE
    key = pd.MultiIndex.from_frame(rows[["thread", "subject"]])
    opened, removed = (key[on_file & (rows["op"] == op)] for op in (Op.OPEN, Op.UNLINK))
    return on_file & key.isin(opened) & key.isin(removed)


def _of_descriptors(tree: Tree, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the hand-overs of descriptors: a thread opened one before another used it, or used it before another closed it."""
    used = rows.loc[rows["op"].isin(_BY_DESCRIPTOR) & (rows["fd"] >= 0), ["thread", "subject", "fd", "at", "end", "op"]]
    used = used.assign(process=np.array(tree.process, np.int64)[used["thread"]])
    used = used.sort_values(["process", "subject", "fd", "at"], kind="stable")
    key = used[["process", "subject", "fd"]].to_numpy(np.int64)
    changes = np.append(True, (key[1:] != key[:-1]).any(axis=1)) if len(used) else np.zeros(0, np.bool_)
    used["opening"] = np.cumsum(changes | (used["op"] == Op.OPEN).to_numpy(np.bool_))
    own = used.groupby(["opening", "thread"], as_index=False).agg(wanted=("at", "min"), done=("end", "max"))
    opens = used[used["op"] == Op.OPEN].set_index("opening")
    closes = used[used["op"] == Op.CLOSE].drop_duplicates("opening").set_index("opening")
    after_open = own.join(opens[["thread", "end"]].rename(columns={"thread": "other", "end": "opened"}), "opening", "inner")
    after_open = after_open[(after_open["thread"] != after_open["other"]) & (after_open["opened"] <= after_open["wanted"])]
    to_close = own.join(closes[["thread", "at"]].rename(columns={"thread": "other", "at": "closed"}), "opening", "inner")
    to_close = to_close[(to_close["thread"] != to_close["other"]) & (to_close["done"] <= to_close["closed"])]
    handed: pd.DataFrame = pd.concat([
        after_open[["other", "thread", "opened", "wanted"]].set_axis(_COLUMNS, axis=1),
        to_close[["thread", "other", "done", "closed"]].set_axis(_COLUMNS, axis=1),
    ]).astype(np.int64)  # fmt: skip
    return handed


def _of_silences(tree: Tree, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the waits of threads that make the first call after their process made no call for a while.

    Such a thread belongs to a pool and got work again, or it waited for a pool. It waited for the last call before the silence if
    the time from that call to its own varies little, and less than the time from its own previous call.
    """
    found = [pd.DataFrame(columns=_COLUMNS, dtype=np.int64)]
    for _, own in rows.groupby(np.array(tree.process, np.int64)[rows["thread"]]):
        own = own.sort_values("at", kind="stable")
        at, end = own["at"].to_numpy(np.int64), own["end"].to_numpy(np.int64)
        latest = np.maximum.accumulate(end)
        ended_last = own["thread"].to_numpy(np.int64)[np.maximum.accumulate(np.where(end == latest, np.arange(len(own)), 0))]
        breaks = np.flatnonzero(at[1:] - latest[:-1] > _SILENCE_NS)
        own_end = own.groupby("thread")["end"].cummax().groupby(own["thread"]).shift()
        following = own.assign(own_end=own_end, silence=np.searchsorted(breaks, np.arange(len(own))) - 1)
        following = following[following["silence"] >= 0].drop_duplicates(["silence", "thread"]).dropna(subset="own_end")
        last = breaks[following["silence"].to_numpy(np.int64)]
        pairs = np.stack([ended_last[last], following["thread"], latest[last], following["at"]], axis=1)
        handed = pd.DataFrame(pairs, columns=_COLUMNS).assign(own_end=following["own_end"].to_numpy(np.int64))
        found += [part[_COLUMNS] for _, part in handed[handed["source"] != handed["target"]].groupby("target") if _waited(part)]
    return pd.concat(found)


def _waited(handed: pd.DataFrame) -> bool:
    """Return True if the thread's calls after silences waited for the last calls before these silences."""
    after_others, after_own = handed["wanted"] - handed["done"], handed["wanted"] - handed["own_end"]
    spread = (after_others - after_others.median()).abs().median()
    of_own = (after_own - after_own.median()).abs().median()
    return len(handed) >= _FEWEST and bool(2 * spread < of_own and 3 * spread < after_others.median() - _SILENCE_NS)
