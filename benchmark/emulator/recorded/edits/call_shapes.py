"""Change how an edited recording reads its files: in larger requests, and without opening a file again and again."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.workload_yaml.recording import Op, TwinRecording

_OF_CALL_NS = 20_000  # longest time that a Python program is assumed to spend on making a call; 1 to 20 us are usual
_Columns = dict[str, NDArray[Any]]


def with_requests(recording: TwinRecording, request_bytes: int) -> TwinRecording:
    """Return the recording with consecutive sequential reads joined into requests of up to `request_bytes` bytes.

    Reads are joined if a thread makes them one after another by one descriptor, each from the offset at which the previous one
    ended. Larger reads remain unchanged. The time between joined reads is added to the time before the next call, minus the cost
    of making a call.
    """
    columns = recording.columns
    if not recording.rows:
        return recording
    follows = (columns["op"] == Op.READ) & (columns["offset"] >= 0) & (columns["size"] < request_bytes)
    goes_on = _goes_on(columns, follows)
    first = _first_of_run(goes_on)
    before = np.cumsum(columns["size"]) - columns["size"]
    request = np.where(follows, (before - before[first]) // request_bytes, 0)
    joined = np.append(False, goes_on & (request[1:] == request[:-1]))
    begins = np.flatnonzero(~joined)
    sizes = np.add.reduceat(columns["size"], begins)
    changed = without_rows(columns, joined)
    return replace(recording, columns={**changed, "size": sizes.astype(columns["size"].dtype)})


def join_reads(columns: _Columns, batch: NDArray[np.int64], recorded: TwinRecording, most: int) -> _Columns:
    """Return the columns of an edited recording's rows, with up to `most` consecutive reads joined into one.

    Reads are joined if no computation lies between them, if each starts at the offset at which the previous one ended, and if
    each was the only read for its recorded batch. `batch`: the recorded batch of each row, -1 for none.
    """
    alone = np.append(_read_by_one_call(recorded), False)[batch]  # the last element stands for rows without a batch
    goes_on = _goes_on(columns, alone) & (batch[1:] != batch[:-1]) & (columns["think_ns"][1:] == 0)
    begins = np.flatnonzero(
        (np.arange(len(batch)) - _first_of_run(goes_on)) % most == 0
    )  # without computation, batches follow one another without a pause, too
    return {name: np.add.reduceat(values, begins) if name == "size" else values[begins] for name, values in columns.items()}


def _read_by_one_call(recorded: TwinRecording) -> NDArray[np.bool_]:
    """Return, by recorded batch, whether a rank read it without loaders and by one call."""
    columns, batches = recorded.columns, recorded.batches
    of_batch = (columns["batch"] >= 0) & (columns["op"] < Op.PIPE_WRITE)
    calls, reads = (
        np.bincount(columns["batch"][of_batch & chosen], minlength=len(batches.loader))
        for chosen in (np.ones(len(of_batch), np.bool_), (columns["op"] == Op.READ) & (columns["offset"] >= 0))
    )
    found: NDArray[np.bool_] = (calls == 1) & (reads == 1) & np.isin(batches.loader, [each.process for each in batches.passes])
    return found


def kept_open(recording: TwinRecording) -> TwinRecording:
    """Return the recording without repeated openings: each process opens each file of the data set only once.

    A process closes such a file only after its last use. Reads without an offset would continue at a wrong offset, so files with
    such reads are opened as before. If an opening is left out, the next call begins after the usual short time of its thread. Up
    to _OF_CALL_NS of the time between them belong to the opening, since Python inspects an opened file.
    """
    columns, op = recording.columns, recording.columns["op"]
    key = _keys(recording, np.array(recording.header.threads, np.int64)[columns["thread"]])
    opens, closes = (np.flatnonzero((key >= 0) & (op == each)) for each in (Op.OPEN, Op.CLOSE))
    again, early = np.ones(len(op), np.bool_), np.ones(len(op), np.bool_)
    again[opens[np.unique(key[opens], return_index=True)[1]]] = False
    early[closes[::-1][np.unique(key[closes][::-1], return_index=True)[1]]] = False
    left_out = np.zeros(len(op), np.bool_)
    left_out[opens], left_out[closes] = again[opens], early[closes]
    thinks = columns["think_ns"].copy()
    after = np.flatnonzero(left_out[:-1] & (op[:-1] == Op.OPEN) & (columns["thread"][1:] == columns["thread"][:-1])) + 1
    within = np.minimum(thinks[after], _OF_CALL_NS)
    thinks[after] -= within - np.minimum(within, _usual_gaps(columns)[columns["thread"][after]])
    return replace(recording, columns=without_rows({**columns, "think_ns": thinks}, left_out))


def _usual_gaps(columns: _Columns) -> NDArray[np.int64]:
    """Return, for each thread, the median of the times below _OF_CALL_NS before its calls on files; 0 if there is none.

    Times after an opening are left out.
    """
    op, thread = columns["op"], columns["thread"]
    found = np.zeros(int(thread.max(initial=-1)) + 1, np.int64)
    within = (op[1:] < Op.PIPE_WRITE) & (op[:-1] < Op.PIPE_WRITE) & (op[:-1] != Op.OPEN) & (thread[1:] == thread[:-1])
    short = np.flatnonzero(within & (columns["think_ns"][1:] < _OF_CALL_NS)) + 1
    order = short[np.lexsort((columns["think_ns"][short], thread[short]))]
    first = np.searchsorted(thread[order], np.arange(len(found) + 1))
    counts = np.diff(first)
    middle = (first[:-1] + (counts - 1) // 2)[counts > 0]
    found[counts > 0] = columns["think_ns"][order][middle]
    return found


def read_once(recording: TwinRecording) -> TwinRecording:
    """Return the recording with each thread reading each byte of the data set only once, and then using its copy in memory.

    A read is left out if earlier reads of the thread returned all its bytes. An opening and closing of a file with no other call
    between them is left out, too. Reads without an offset return unknown bytes, so files with such reads are read as before.
    """
    columns, op = recording.columns, recording.columns["op"]
    key = _keys(recording, columns["thread"])
    reads = np.flatnonzero((key >= 0) & (op == Op.READ) & (columns["size"] > 0))
    left_out = np.zeros(len(op), np.bool_)
    left_out[reads] = _are_covered(key[reads], columns["offset"][reads], columns["offset"][reads] + columns["size"][reads])
    order = np.flatnonzero(key >= 0)
    order = order[np.argsort(key[order], kind="stable")]
    opened = np.cumsum(np.append(True, np.diff(key[order]) != 0)[: len(order)] | (op[order] == Op.OPEN))
    is_end, again = np.isin(op[order], [Op.OPEN, Op.CLOSE]), left_out[order]
    used = np.bincount(opened, ~is_end & ~again)
    left_out[order] |= is_end & (used[opened] == 0) & (np.bincount(opened, again)[opened] > 0)
    return replace(recording, columns=without_rows(columns, left_out))


def _keys(recording: TwinRecording, owner: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return, for each row, an index of its pair (`owner`, data-set file); -1 for other files and unknown offsets."""
    op, subject, files = recording.columns["op"], recording.columns["subject"], recording.header.files
    free = np.array([not file.written for file in files] or [False])
    free[subject[(op == Op.READ) & (recording.columns["offset"] < 0)]] = False
    on_file = op < Op.PIPE_WRITE
    return np.where(on_file & free[np.where(on_file, subject, 0)], owner.astype(np.int64) * max(len(files), 1) + subject, -1)


def _are_covered(key: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each range from `begin` to `end` that earlier ranges with the same key cover completely."""
    numbers, offsets = (np.unique(each, return_inverse=True)[1] for each in (key, np.concatenate([begin, end])))
    # The ends of all ranges divide a key's bytes into pieces, so that each range is a row of whole pieces.
    _, at = np.unique(np.tile(numbers, 2) * (offsets.max(initial=0) + 1) + offsets, return_inverse=True)
    first, last = at[: len(key)], at[len(key) :]
    _, distinct = np.unique(first * (at.max(initial=0) + 1) + last, return_index=True)
    distinct.sort()
    pieces = (last - first)[distinct]
    owner = np.repeat(distinct, pieces)
    piece = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first[owner]
    found = np.ones(len(key), np.bool_)
    found[owner[np.unique(piece, return_index=True)[1]]] = False
    return found


def _goes_on(columns: _Columns, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return, for each row but the first, True if it and the row before are `chosen` and it begins where that row ended."""
    found: NDArray[np.bool_] = chosen[1:] & chosen[:-1]
    for name in ("thread", "op", "subject", "fd", "flags"):
        found &= columns[name][1:] == columns[name][:-1]
    found &= columns["offset"][1:] == columns["offset"][:-1] + columns["size"][:-1]
    return found


def _first_of_run(goes_on: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the index of the first row of each row's run. `goes_on`: whether each row but the first continues a run."""
    row = np.arange(len(goes_on) + 1)
    found: NDArray[np.int64] = np.maximum.accumulate(np.where(np.append(False, goes_on), 0, row))
    return found


def without_rows(columns: _Columns, left_out: NDArray[np.bool_]) -> _Columns:
    """Return the rows that are not left out. The time before a row that is left out is added before the thread's next row.

    If this time is so short that it is part of making the call, it is left out as well.
    """
    thread, thinks = columns["thread"], columns["think_ns"]
    columns = {**columns, "think_ns": np.where(left_out & (thinks < _OF_CALL_NS), 0, thinks)}
    clock = np.cumsum(columns["think_ns"])
    kept = np.flatnonzero(~left_out)
    begins = np.searchsorted(thread, thread[kept])  # the first row of the thread
    since = clock[begins] - columns["think_ns"][begins]
    previous = np.append(0, clock[kept][:-1])
    same = np.append(False, thread[kept][1:] == thread[kept][:-1])
    thinks = clock[kept] - np.where(same, previous, since)
    made = {name: column[kept] for name, column in columns.items()}
    return {**made, "think_ns": thinks.astype(columns["think_ns"].dtype)}
