"""Findings about checkpoints: training that waits for them, and files that a crash would lose."""

from collections.abc import Iterator

from iotwin.loops.answers.checkpoint_times import saving_share, steps_between_saves
from iotwin.loops.answers.finding import JobChange, JobFinding
from iotwin.loops.answers.training_view import HARDLY, TrainingView
from iotwin.trace_store.schema import WRITE_OPS

_RARER = 10  # factor for the steps between checkpoints
_SYNCS = ("fsync", "fdatasync", "sync_file_range", "msync", "sync", "syncfs")
_SQL = (
    "select f.path, e.op, count(*) as calls, sum(e.duration_ns) / 1e9 as seconds from events e join files f using (file_id) "
    "where f.kind = 'checkpoint' group by f.path, e.op order by seconds desc limit 20"
)


def checkpoint_findings(view: TrainingView) -> Iterator[JobFinding]:
    """Yield the findings about checkpoints."""
    share, every = saving_share(view), steps_between_saves(view)
    if share > HARDLY:
        rarer = None if every is None else every * _RARER
        overrides = None if rarer is None else (f"++workload.checkpoint.steps_between_checkpoints={rarer}",)
        aside = ("++workload.twin.checkpoint.asynchronous=true",)
        for change in (
            JobChange("steps between checkpoints", every, rarer or "more", "the training loop", overrides),
            JobChange(
                "writing of checkpoints", "by the training loop", "by a background thread", "the function that saves", aside
            ),
        ):
            yield JobFinding(
                "checkpoint_stall", f"training stands still for {share:.0%} of the time while a checkpoint is written",
                {"saving_share": share, "steps_between": every}, _SQL, change,
            )  # fmt: skip
    calls = view.calls("checkpoint")
    op = calls["op"].astype(str)
    written = set(calls.loc[op.isin(WRITE_OPS) & (calls["result"] > 0), "file_id"])
    unsynced = written - set(calls.loc[op.isin(_SYNCS), "file_id"])
    if unsynced:
        lost = f"{len(unsynced)} of {len(written)} checkpoint files were never synced: a crash may lose them"
        yield JobFinding(
            "checkpoint_not_durable", lost,
            {"files": len(written), "unsynced": len(unsynced)}, _SQL,
            JobChange("fsync", "none", "before the close", "the function that saves", ("++workload.checkpoint.fsync=true",)),
        )  # fmt: skip
