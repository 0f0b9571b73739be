"""Edited recordings can be played to their end: no thread waits for what nobody does. A naive player without times decides."""

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.workload_yaml.recording import Op, TwinRecording
from tests.benchmark.emulator.recorded.edits.test_requested_edits import count, recorded
from tests.benchmark.loader_job import LoaderJob


def stuck(made: TwinRecording) -> list[str]:
    """Play the rows of all threads, each as soon as what it waits for has been done. Return the rows at which threads remain."""
    columns = {name: made.columns[name].tolist() for name in ("op", "subject", "size")}
    starts, process_of = made.starts().tolist(), made.header.threads
    main = {process: thread for thread, process in reversed(list(enumerate(process_of)))}
    at, running, ended = list(starts[:-1]), {0}, set[int]()
    pipes, posts = Counter[int](), Counter[tuple[int, int]]()

    def can(thread: int) -> bool:
        op, subject, size = (columns[name][at[thread]] for name in ("op", "subject", "size"))
        return {
            Op.PIPE_READ: pipes[subject] >= size, Op.POLL: pipes[subject] > 0, Op.JOIN: subject in ended,
            Op.WAIT: posts[process_of[thread], subject] > 0,
        }.get(Op(op), True)  # fmt: skip

    def does(thread: int) -> None:
        op, subject, size = (columns[name][at[thread]] for name in ("op", "subject", "size"))
        at[thread] += 1
        if op in (Op.PIPE_WRITE, Op.PIPE_READ):
            pipes[subject] += size if op == Op.PIPE_WRITE else -size
        elif op in (Op.POST, Op.WAIT):
            posts[process_of[thread], subject] += 1 if op == Op.POST else -1
        elif op in (Op.START, Op.THREAD):
            running.add(main[subject] if op == Op.START else subject)
        elif op == Op.END:
            ended.add(process_of[thread])

    moved = True
    while moved:
        moved = False
        for thread in sorted(running):
            while at[thread] < starts[thread + 1] and can(thread):
                does(thread)
                moved = True
    return [
        f"thread {thread}: {Op(columns['op'][at[thread]]).name} {columns['subject'][at[thread]]}"
        for thread in range(len(process_of))
        if at[thread] < starts[thread + 1]
    ]


def _joins_in_the_last_step(made: TwinRecording) -> TwinRecording:
    """Return the recording with last steps of passes that end after the loaders, as where a job computes on."""
    batches, columns = made.header.batches, made.columns
    assert batches is not None
    joins = np.sort(columns["at_ns"][(columns["op"] == Op.JOIN) & np.isin(columns["subject"], batches.loader)])
    computed = list(batches.computed_ns)
    last = np.cumsum([each.batches for each in batches.passes]) - 1
    for index in last.tolist():
        after = joins[joins >= computed[index]][: len(set(batches.loader))]
        computed[index] = int(after[-1]) + 1 if len(after) else computed[index]
    changed = msgspec.structs.replace(batches, computed_ns=computed)
    return replace(made, header=msgspec.structs.replace(made.header, batches=changed))


JOBS = {
    "files": LoaderJob(evaluated=8), "one loader": LoaderJob(loaders=1), "shards": LoaderJob(shards=True, epochs=3),
    "one shard": LoaderJob(shards=True, loaders=1, epochs=3), "persistent": LoaderJob(persistent=True, epochs=3),
    "pins": LoaderJob(pins=True), "two ranks": LoaderJob(ranks=2),
}  # fmt: skip
EDITS = [
    Edits(prefetch=4), Edits(batch=2), Edits(batch=0.5), Edits(loaders=1), Edits(loaders=3), Edits(loaders=0), Edits(epochs=5),
    Edits(decode=0.5), Edits(samples=2), Edits(computation=0.5),
]  # fmt: skip


@pytest.mark.parametrize("late_joins", [False, True])
@pytest.mark.parametrize("job", JOBS)
def test_every_edit_can_be_played_to_its_end(job: str, late_joins: bool) -> None:
    made = recorded(JOBS[job])
    assert stuck(made) == []
    if late_joins:
        made = _joins_in_the_last_step(made)
    for edits in EDITS:
        after = edit(made, edits)
        assert stuck(after) == [], edits
        assert count(after, Op.START) == count(after, Op.JOIN), edits


def test_a_naive_player_finds_a_thread_that_waits_in_vain() -> None:
    made = recorded()
    rows = np.flatnonzero(made.columns["op"] == Op.PIPE_WRITE)[5:6]
    assert stuck(replace(made, columns={name: np.delete(each, rows) for name, each in made.columns.items()}))


def test_streams_whose_samples_are_counted_but_not_seen_keep_their_batches() -> None:
    """A loader knows from its messages how many samples a batch has; which calls read which one is another question."""
    made = recorded(LoaderJob(shards=True, loaders=1))
    assert made.header.batches is not None
    unseen = replace(made, columns={**made.columns, "sample": np.full_like(made.columns["sample"], -1)})
    usual = msgspec.structs.replace(made.header.batches, samples=[4] * len(made.header.batches.samples))
    unseen = replace(unseen, header=msgspec.structs.replace(made.header, batches=usual))
    for edits in (Edits(prefetch=4), Edits(batch=2), Edits(batch=0.5)):
        steps = round(2 * 24 / 4 / edits.batch)
        assert count(edit(unseen, edits), Op.PIPE_READ, 0) == steps
