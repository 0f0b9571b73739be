"""Edits a recording: rebuilds its ranks and loaders, and copies its other processes unchanged."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.recorded.edits.balanced_ranks import usual_loaders
from iotwin.benchmark.emulator.recorded.edits.call_shapes import kept_open, read_once, with_requests
from iotwin.benchmark.emulator.recorded.edits.rank_line import RankLine
from iotwin.benchmark.emulator.recorded.edits.recorded_checkpoints import check_saves, with_syncs
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits, copies_folder, edits_of
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder
from iotwin.benchmark.emulator.recorded.edits.silent_touches import with_silent_touches
from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.schema import FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITABLE
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import MOST_ROWS, Op, TwinRecording, read_recording

_NEVER_NS = 1 << 62
_CHANGES = (Op.WRITE, Op.COPY_TO, Op.TRUNCATE, Op.RENAME, Op.UNLINK)
# Most bytes that other ranks may write, as a share of the first rank's. Ranks may write small files, for example to find others.
_LITTLE = 0.1
_ON_PIPES = (Op.PIPE_WRITE, Op.PIPE_READ, Op.POLL)


def edit(recording: TwinRecording, edits: Edits, rank: int = 0) -> TwinRecording:
    """Return the labelled `recording` with `edits`, in the form that rank `rank` of `edits.ranks` replays.

    Raises UsageError if the result would be too large, and IotwinError if the recording's batches do not fit its calls.
    """
    growth = max(1.0, (edits.epochs or 1) / structure_of(recording.batches).epochs) * max(1.0, edits.samples)
    if recording.rows * growth > MOST_ROWS:
        raise UsageError(f"the edited twin would make more than {MOST_ROWS} calls; ask for fewer epochs or samples")
    try:
        return _edited(recording, edits, rank)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise IotwinError(f"the recording's batches do not fit its calls ({error}); fit the trace again") from None


def _edited(recording: TwinRecording, edits: Edits, rank: int) -> TwinRecording:
    recording = with_silent_touches(recording)
    batches = recording.batches
    if edits.balanced and edits.loaders is None:
        edits = edits._replace(loaders=usual_loaders(batches))
    ranks = list(dict.fromkeys(each.process for each in batches.passes))
    loaders = set(batches.loader) - set(ranks)
    check_saves(recording, edits, ranks)
    kept = _kept(recording, set(ranks), loaders, edits.ranks > 1 and rank > 0)
    left_out = set[int]()
    if edits.regrouped:  # the first rank is the model for all
        _check_writes(recording, ranks)
        left_out = set(ranks[1:])
        op, subject = recording.columns["op"], recording.columns["subject"]
        kept &= ~(np.isin(op, [Op.START, Op.JOIN]) & np.isin(subject, list(left_out)))
    builder = RowBuilder(recording)
    for process, parent in enumerate(recording.header.parents):
        if process in left_out or parent in left_out:
            continue
        if process in ranks:
            RankLine(recording, builder, process, kept, edits, rank).play()
        elif process not in loaders:
            builder.copy_process(process, process, kept)
    made = builder.finish(round(edits.batch))
    made = kept_open(made) if edits.keep_open else made
    made = read_once(made) if edits.read_once else made
    made = made if edits.fsync is None else with_syncs(made, edits.fsync)
    return with_requests(made, edits.request_bytes) if edits.request_bytes else made


class Copies(NamedTuple):
    """Copies of the data set's files as (name, bytes), their folder, and the edited recording that reads them."""

    files: list[tuple[str, int]]
    folder: Path
    edited: TwinRecording


def copies_needed(config: Config, file: str, ranks: int) -> Copies | None:
    """Return the copies of files that a twin with more samples reads; None if it reads none. `file`: path of its recording."""
    recording = read_recording(Path(file))
    edits = edits_of(config, recording.header, ranks)
    if edits is None or edits.samples <= 1:
        return None
    edited = edit(recording, edits._replace(ranks=1))
    files = [(file.name, file.size_bytes) for file in edited.header.files[len(recording.header.files) :] if not file.written]
    return Copies(files, copies_folder(config, edits), edited) if files else None


def _check_writes(recording: TwinRecording, ranks: list[int]) -> None:
    """Raise UsageError if ranks other than the first one write much data, such as parts of checkpoints."""
    columns = recording.columns
    writes = np.isin(columns["op"], [Op.WRITE, Op.COPY_TO])
    process = np.array(recording.header.threads, np.int64)[columns["thread"][writes]]
    written = [int(columns["size"][writes][process == rank].sum()) for rank in ranks]
    if max(written[1:], default=0) > _LITTLE * written[0]:
        raise UsageError(
            f"twin.ranks: each rank writes a part of the checkpoints, and those of other numbers of ranks are unknown; "
            f"leave it at {len(ranks)}"
        )


def _kept(recording: TwinRecording, ranks: set[int], loaders: set[int], writes_nothing: bool) -> NDArray[np.bool_]:
    """Return the mask of the rows that an edited recording may copy unchanged.

    The other rows are rebuilt: rows on pipes with an end in a rank or a loader, hand-overs between threads of ranks and loaders,
    and starts and ends of loaders. `writes_nothing`: True if this replay is not the first rank's, so it writes no files. Every
    replay has the processes that are not ranks, such as the launcher. Otherwise, each replay would create and remove their files.
    """
    columns, header = recording.columns, recording.header
    op, subject = columns["op"], columns["subject"]
    process = np.array(header.threads, np.int64)[columns["thread"]]
    edited = np.isin(process, list(ranks | loaders))
    on_pipe = np.isin(op, _ON_PIPES)
    kept = ~(on_pipe & np.isin(subject, subject[on_pipe & edited]))
    kept &= ~(edited & np.isin(op, [Op.POST, Op.WAIT, Op.THREAD]))
    kept &= ~(np.isin(op, [Op.START, Op.JOIN]) & np.isin(subject, list(loaders)) & ~np.isin(process, list(ranks)))
    if writes_nothing:
        written = np.array([file.written for file in header.files] or [False])
        on_file = op < Op.PIPE_WRITE
        kept &= ~(on_file & written[np.where(on_file, subject, 0)]) | _reads_of_found(recording)
    return kept


def _reads_of_found(recording: TwinRecording) -> NDArray[np.bool_]:
    """Return a mask of the rows on files that existed before the job (such as a checkpoint), up to the job's first change of
    them.
    """
    columns = recording.columns
    op, at_ns, changes = columns["op"], columns["at_ns"], np.isin(columns["op"], _CHANGES)
    changes |= (op == Op.OPEN) & (columns["flags"] & (FLAG_CREATE | FLAG_TRUNCATE | FLAG_WRITABLE) > 0)
    first_ns = np.where([file.written and not file.made for file in recording.header.files] or [False], _NEVER_NS, 0)
    np.minimum.at(first_ns, columns["subject"][changes], at_ns[changes])
    on_file = op < Op.PIPE_WRITE
    return on_file & (at_ns < first_ns[np.where(on_file, columns["subject"], 0)])
