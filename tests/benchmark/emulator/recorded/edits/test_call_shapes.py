"""Larger requests and files that remain open, against naive programs."""

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iotwin.benchmark.emulator.recorded.edits.call_shapes import kept_open, read_once, with_requests
from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.workload_yaml.recording import Op, RecordedFile, TwinRecording
from tests.benchmark.emulator.recorded.edits.test_requested_edits import recorded
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.recordings import recording, row

FILES = [RecordedFile("a", size_bytes=1 << 20), RecordedFile("b", size_bytes=1 << 20), RecordedFile("c", written=True)]
calls = st.tuples(
    st.sampled_from([Op.OPEN, Op.READ, Op.READ, Op.READ, Op.READ, Op.CLOSE, Op.POST]),
    st.integers(0, 2), st.integers(0, 6), st.integers(0, 3), st.sampled_from([0, 1, 19_999, 20_000, 50_000]),
)  # fmt: skip
threads = st.lists(st.lists(calls, max_size=30), min_size=1, max_size=3)


def made_of(each_thread: list[list[tuple[Any, ...]]]) -> TwinRecording:
    """Threads of one process each, whose reads are often sequential: offset and size are multiples of 10."""
    rows = [
        row(
            thread, op, subject if op < Op.PIPE_WRITE else 0, offset=10 * offset, size=10 * size * (op == Op.READ), think_ns=think
        )
        for thread, calls in enumerate(each_thread)
        for op, subject, offset, size, think in calls
    ]
    count = len(each_thread)
    return recording(rows, FILES, parents=[-1, *[0] * (count - 1)], threads=list(range(count)), channels=1)


def lines(made: TwinRecording) -> dict[int, list[dict[str, int]]]:
    found = defaultdict(list)
    for index in range(made.rows):
        one = {name: int(column[index]) for name, column in made.columns.items()}
        found[one["thread"]].append(one)
    return found


def naive_requests(thread: list[dict[str, int]], most: int) -> list[tuple[int, ...]]:
    """(op, subject, offset, size, think) of each row, with reads joined one after another."""
    made: list[list[int]] = []
    begun, think, before = 0, 0, None
    for one in thread:
        joins = (
            before is not None and one["op"] == before["op"] == Op.READ and max(one["size"], before["size"]) < most
            and one["subject"] == before["subject"] and one["offset"] == before["offset"] + before["size"] and one["offset"] >= 0
        )  # fmt: skip
        begun = begun if joins else one["offset"]
        if joins and (one["offset"] - begun) // most == (before["offset"] - begun) // most:
            made[-1][3] += one["size"]
            think += one["think_ns"] if one["think_ns"] >= 20_000 else 0
        else:
            made.append([one["op"], one["subject"], one["offset"], one["size"], one["think_ns"] + think])
            think = 0
        before = one
    return [tuple(each) for each in made]


@given(threads, st.integers(1, 8))
def test_joined_reads_are_those_of_a_naive_program(each_thread, most):
    before = made_of(each_thread)
    after = lines(with_requests(before, 10 * most))
    for thread, rows in lines(before).items():
        found = [tuple(one[name] for name in ("op", "subject", "offset", "size", "think_ns")) for one in after[thread]]
        assert found == naive_requests(rows, 10 * most)


@given(threads)
def test_a_file_that_remains_open_is_opened_first_and_closed_last(each_thread):
    before = made_of(each_thread)
    after = lines(kept_open(before))
    for thread, rows in lines(before).items():
        opens = {one["subject"]: i for i, one in reversed(list(enumerate(rows))) if one["op"] == Op.OPEN}
        closes = {one["subject"]: i for i, one in enumerate(rows) if one["op"] == Op.CLOSE}
        kept = [
            one for i, one in enumerate(rows)
            if one["op"] not in (Op.OPEN, Op.CLOSE) or FILES[one["subject"]].written
            or i == (opens if one["op"] == Op.OPEN else closes)[one["subject"]]
        ]  # fmt: skip
        assert [(one["op"], one["subject"], one["size"]) for one in after[thread]] == [
            (one["op"], one["subject"], one["size"]) for one in kept
        ]
        ends = [i for i, one in enumerate(rows) if one in kept[-1:]]
        if ends:  # the time before the last call that remains is the same
            assert sum(one["think_ns"] for one in after[thread]) <= sum(one["think_ns"] for one in rows)


def test_the_time_after_an_opening_that_is_left_out_belongs_to_it():
    """Calls follow one another after 2 us, but 15 us after an opening, and 35 us (15 us more than a call costs) once."""
    rows = [
        row(0, op, 0, offset=0, size=10 * (op == Op.READ), think_ns=think)
        for after_open in (15_000, 15_000, 35_000)
        for op, think in ((Op.OPEN, 2000), (Op.READ, after_open), (Op.CLOSE, 2000))
    ]
    [after] = lines(kept_open(recording(rows, FILES))).values()
    assert [one["op"] for one in after] == [Op.OPEN, Op.READ, Op.READ, Op.READ, Op.CLOSE]
    assert [one["think_ns"] for one in after] == [2000, 15_000, 2000, 17_000, 2000]


def naive_read_once(thread: list[dict[str, int]]) -> list[dict[str, int]]:
    """The rows that remain: reads that return a new byte, and openings and closings of files between which others remain."""
    known: set[tuple[int, int]] = set()
    fresh: list[bool] = []
    for one in thread:
        read = {(one["subject"], byte) for byte in range(one["offset"], one["offset"] + one["size"])}
        is_again = one["op"] == Op.READ and read and not FILES[one["subject"]].written and read <= known
        fresh.append(not is_again)
        known |= read if one["op"] == Op.READ else set()
    kept = []
    for index, one in enumerate(thread):
        session = [index]
        for step in (-1, 1):  # the rows on the same file from one opening to the next
            at = index
            while one["op"] in (Op.OPEN, Op.CLOSE) and not FILES[one["subject"]].written:
                if step < 0 and thread[at]["op"] == Op.OPEN and thread[at]["subject"] == one["subject"]:
                    break
                at += step
                if not 0 <= at < len(thread):
                    break
                if thread[at]["op"] == Op.POST or thread[at]["subject"] != one["subject"]:
                    continue
                if step > 0 and thread[at]["op"] == Op.OPEN:
                    break
                session.append(at)
        used = [at for at in session if thread[at]["op"] == Op.READ]
        if one["op"] in (Op.OPEN, Op.CLOSE) and used:
            kept.append(one) if any(fresh[at] for at in used) else None
        elif fresh[index]:
            kept.append(one)
    return kept


@given(threads)
def test_a_thread_reads_each_byte_once_as_a_naive_program(each_thread):
    before = made_of(each_thread)
    after = lines(read_once(before))
    for thread, rows in lines(before).items():
        names = ("op", "subject", "offset", "size")
        assert [[one[name] for name in names] for one in after[thread]] == [
            [one[name] for name in names] for one in naive_read_once(rows)
        ]


def test_files_that_are_read_without_offsets_are_opened_as_before():
    rows = [row(0, op, 0, size=8) for op in (Op.OPEN, Op.READ, Op.CLOSE) * 3]
    assert kept_open(recording(rows, FILES)).rows == read_once(recording(rows, FILES)).rows == 9


def test_an_edited_job_reads_the_same_bytes_by_fewer_calls():
    before = recorded(LoaderJob(file_bytes=100_000))

    def reads(made: TwinRecording) -> tuple[int, int]:
        is_read = made.columns["op"] == Op.READ
        return int(is_read.sum()), int(made.columns["size"][is_read].sum())

    usual, large = (reads(edit(before, Edits(batch=0.5, request_bytes=size))) for size in (None, 1 << 20))
    assert large[1] == usual[1] and large[0] <= usual[0]


def test_decoding_takes_a_share_of_the_time_between_the_reads_of_samples():
    before = recorded()

    def loaders_ms(scale: float) -> float:
        made = edit(before, Edits(decode=scale))
        ranks = {each.process for each in before.batches.passes}
        process = np.array(made.header.threads)[made.columns["thread"]]
        served = np.isin(made.columns["op"], [Op.READ, Op.OPEN, Op.CLOSE]) & ~np.isin(process, list(ranks))
        return float(made.columns["think_ns"][served].sum() / 1e6)

    assert loaders_ms(0.5) < 0.75 * loaders_ms(1)
    assert loaders_ms(2) > 1.5 * loaders_ms(1)
