"""Traces that show no training: refused with the reason, before a useless twin is made."""

from collections.abc import Sequence

import pandas as pd
from pyarrow import compute as pc

from benchmark.fit_passes import Pass
from tracing_tools.trace import schema
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.reader import Trace

_NOT_WRITTEN_BY_COPIES = ("dataset", "log", "pipe", "socket", "device", "system")
_COPIED = 0.8  # share of the bytes read that was written before the last of them was read, from which a job copies
_FEWEST_PROGRAMS = 3  # that read a file or two each, from which they are no ranks


def check_is_training(trace: Trace, training: Sequence[Pass]) -> None:
    """Raise IotwinError, saying why, when unlogged passes are a copy of the files or the inputs of many programs.

    A job that logs its epochs is believed.
    """
    if training[0].logged:
        return
    first = training[0]
    if not first.workers and first.ranks >= _FEWEST_PROGRAMS and len(first.every) <= 2 * first.ranks:
        raise IotwinError(
            f"{trace.path}: this is no training job: {first.ranks} programs read {len(first.every)} files, once each and no "
            "more, as a build does; trace a job that goes through a data set"
        )
    if len(training) == 1 and _copies(trace, first):
        raise IotwinError(
            f"{trace.path}: this is no training job: what it reads it writes again at once, as a copy does; trace a job that "
            "goes through a data set"
        )


def _copies(trace: Trace, part: Pass) -> bool:
    files = trace.files()
    kinds = files["kind"].astype(str)
    chosen = pc.field("pid").isin([part.rank, *part.pids]) & pc.field("op").isin([*schema.READ_OPS, *schema.WRITE_OPS])
    calls = trace.events_frame(["start_ns", "op", "file_id", "result"], chosen & (pc.field("result") > 0)).dropna()
    kind = calls["file_id"].map(pd.Series(kinds.to_numpy(), index=files["file_id"]))
    reads = calls[calls["op"].isin(schema.READ_OPS) & (kind == "dataset")]
    before_last = calls["start_ns"] <= reads["start_ns"].max()
    written = calls[calls["op"].isin(schema.WRITE_OPS) & ~kind.isin(_NOT_WRITTEN_BY_COPIES) & before_last]
    # The last file's bytes are written after its last read.
    last = reads["file_id"] == reads["file_id"].iloc[-1]
    return bool(len(written) and written["result"].sum() >= _COPIED * reads.loc[~last, "result"].sum())
