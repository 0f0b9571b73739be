"""The recorded twin of a traced job: its calls as they were made. The job may be any program, training or not."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin import workload_yaml as c
from iotwin.benchmark.fit.batches.labels import Labelled, describe_labels
from iotwin.benchmark.fit.confidence import agreement, median_time
from iotwin.benchmark.fit.coverage import KINDS, coverage_of
from iotwin.benchmark.fit.fitted import Fitted, loss_notes
from iotwin.benchmark.fit.recorded.batches import find_batches, label_rows
from iotwin.benchmark.fit.recorded.calls import find_replayable
from iotwin.benchmark.fit.recorded.files import name_files
from iotwin.benchmark.fit.recorded.memory_budget import budgeted_step, describe_budget, rematerialized_time
from iotwin.benchmark.fit.recorded.rows import ROW_COLUMNS, assemble, marks_of
from iotwin.benchmark.fit.traced_job import Job
from iotwin.common.units import counted, format_size
from iotwin.workload_yaml.recorded_structure import RecordedStructure, pass_bounds, passes_of_first_rank, structure_of
from iotwin.workload_yaml.recording import DUPLICATED, RENAMED, SUFFIX, Header, Label, Op, RecordedBatches, TwinRecording

RECORDING = f"twin{SUFFIX}"
_DIRECTIONS: dict[str, list[int]] = {
    "read": [Op.READ, Op.COPY, Op.TOUCH],
    "write": [Op.WRITE, Op.COPY_TO],
    "open": [Op.OPEN],
}
_OUTPUT = "./twin_checkpoints/"


def fit_recorded(job: Job, labelled: Labelled) -> Fitted:
    """Return the recorded twin of the job. Raises IotwinError if the job made no call on storage."""
    calls, pipes, tree, thread_of, made = find_replayable(job)
    on_file = calls["op"] < Op.PIPE_WRITE
    named = name_files(calls.loc[on_file, ["at", "op", "file", "offset", "moved", "flags"]], job.files)
    calls = calls.assign(
        subject=np.where(on_file, named.index[np.where(on_file, calls["file"], -1)], calls["file"]).astype(np.int32),
        flags=(calls["flags"] | _renamed(calls, on_file) | _duplicated(calls, on_file)).astype(np.int32),
    )
    coverage, moved = _coverage(job, calls, made), calls.groupby("op")["moved"].sum()
    del made
    calls = pd.DataFrame({name: calls[name].to_numpy() for name in ROW_COLUMNS}, copy=False)
    marks, marks_ns = marks_of(job)
    ranks = job.processes.loc[job.processes["role"] == "rank", "pid"].astype(int).tolist()
    rank = next((index for index, pid in enumerate(tree.pids) if pid in ranks), 0)
    batches, index = find_batches(job, labelled, tree, calls)
    columns, channels = assemble(tree, calls, marks_ns, rank)
    if batches is not None:
        labelled = _of_passes(labelled, index)
        columns |= label_rows(columns, labelled.calls, index, thread_of, tree.begin_ns[0])
    structure = None if batches is None else structure_of(batches)
    step = None if structure is None else budgeted_step(job)
    time = None if structure is None or step is None else rematerialized_time(job, step, structure.computation_s)
    trained = structure.ranks if structure else 0
    cost = job.trace.manifest.cost
    header = Header(
        1, named.files, pipes, channels, tree.parents, tree.process, marks, batches, trained,
        transfer_ns=cost.transfer_ns or 0, call_ns=cost.call_ns or 0,
    )  # fmt: skip
    recording = TwinRecording(header, columns)
    config = c.Config(
        workflow=c.Workflow(train=True),
        dataset=c.Dataset(data_folder=named.folder, num_files_train=structure.samples if structure else None),
        **_editable(structure, time),
        checkpoint=c.Checkpoint(checkpoint_folder=_OUTPUT),
        twin=c.Twin(
            recorded=c.TwinRecorded(file=RECORDING),
            ranks=max(trained, 1),
            assumptions=_assumptions(job, recording, structure, labelled.steps is not None and labelled.steps.paced),
        ),
    )
    evidence = {**_evidence(recording, moved), "edits": _edits(structure), "labels": describe_labels(job, labelled)}
    if time is not None and step is not None:
        evidence["memory"] = describe_budget(time, step)
    return Fitted(config, evidence, named.data, _confidence(batches), coverage, recording)


def _of_passes(labelled: Labelled, index: NDArray[np.int64]) -> Labelled:
    """Return the labelled calls. Calls whose batch belongs to no pass become timed. `index`: pass by batch, -1 for none."""
    calls = labelled.calls
    lost = (calls["batch"] >= 0) & (index[calls["batch"]] < 0)
    return labelled._replace(calls=calls.assign(label=calls["label"].mask(lost, int(Label.TIMED))))


def _editable(structure: RecordedStructure | None, time: c.Rematerialized | None) -> dict[str, Any]:
    """Return the sections of the YAML with the recorded values that a user may edit; none if no batches were found.

    `time`: the step time, if it depends on a memory budget.
    """
    if structure is None:
        return {}
    return {
        "reader": c.Reader(
            batch_size=structure.batch_size, read_threads=structure.loaders, prefetch_size=structure.prefetch or None
        ),
        "train": c.Train(epochs=structure.epochs, computation_time=time or round(structure.computation_s, 6)),
    }


def _confidence(batches: RecordedBatches | None) -> dict[str, dict[str, Any]]:
    """Return how certain the values are, by key of the YAML. Values and certainty are those of the first rank."""
    if batches is None:
        return {}
    bounds = pass_bounds(batches)
    own = passes_of_first_rank(batches)
    rows = np.concatenate([np.arange(bounds[index], bounds[index + 1]) for index in own])
    sizes = np.array(batches.samples, np.int64)[rows]
    return {
        "reader.batch_size": agreement(sizes[sizes > 0].tolist()),
        "train.steps_per_epoch": agreement([batches.passes[index].batches for index in own]),
        "train.computation_time": median_time(np.subtract(batches.computed_ns, batches.taken_ns)[rows] / 1e9),
    }


def _coverage(job: Job, calls: pd.DataFrame, made: pd.DataFrame) -> dict[str, Any]:
    """Return the share of all storage calls of the trace (`made`) that the recording contains."""
    kinds = job.files["kind"].astype(str).to_numpy()
    ids = np.flatnonzero(np.isin(kinds, list(KINDS))).tolist()
    kept = calls.loc[(calls["op"] < Op.PIPE_WRITE) & calls["file"].isin(ids), ["op", "file", "moved"]]
    twin = {
        (direction, kind): float(own["moved"].sum()) if direction != "open" else float(len(own))
        for direction, ops in _DIRECTIONS.items()
        for kind in KINDS
        for own in [kept[kept["op"].isin(ops) & (kinds[kept["file"]] == kind)]]
    }
    return coverage_of(made[made["file_id"].isin(ids)], kinds, twin)


def _renamed(calls: pd.DataFrame, on_file: pd.Series) -> pd.Series:
    """Return the flag RENAMED for calls on a file after its first rename, else 0."""
    renames = calls[on_file & (calls["op"] == Op.RENAME)].groupby("file")["at"].min()
    since = calls["file"].map(renames)
    return pd.Series(np.where(on_file & since.notna() & (calls["at"] > since), RENAMED, 0), index=calls.index)


def _duplicated(calls: pd.DataFrame, on_file: pd.Series) -> NDArray[np.int64]:
    """Return the flag DUPLICATED for opens of files that are also used by descriptors which no traced open returned."""
    key = pd.MultiIndex.from_frame(calls[["file", "fd"]])
    opens = (on_file & (calls["op"] == Op.OPEN)).to_numpy(np.bool_)
    uses = (on_file & ~calls["op"].isin([Op.OPEN, Op.TOUCH]) & (calls["fd"] >= 0)).to_numpy(np.bool_)
    elsewhere = calls.loc[uses & ~key.isin(key[opens]), "file"].unique()
    return np.where(opens & calls["file"].isin(elsewhere).to_numpy(np.bool_), DUPLICATED, 0)


def _evidence(recording: TwinRecording, moved: pd.Series) -> dict[str, str]:
    """Return the contents of the twin, in words. `moved`: the bytes that calls moved, by Op."""
    ops, header = recording.columns["op"], recording.header

    def bytes_of(*chosen: Op) -> str:
        return format_size(float(moved[moved.index.isin(chosen)].sum()))

    waits = int(np.isin(ops, [Op.PIPE_READ, Op.POLL, Op.WAIT, Op.JOIN]).sum())
    return {
        "calls": f"{int((ops < Op.PIPE_WRITE).sum())} on {counted(len(header.files), 'file')}: "
        f"{bytes_of(Op.READ, Op.COPY)} read, {bytes_of(Op.WRITE, Op.COPY_TO)} written",
        "threads": f"{len(header.threads)} in {counted(len(header.parents), 'process')}",
        "waits": f"{waits} for {counted(len(header.pipes), 'pipe')}, {counted(header.channels, 'hand-over')} between threads, "
        f"{int((ops == Op.JOIN).sum())} ends of processes",
    }


def _edits(structure: RecordedStructure | None) -> str:
    """Return in words which values of the twin can be edited."""
    if structure is None:
        return "none, as the trace does not show when a rank took which batch"
    known = "" if structure.samples_known else " (parts of a batch, as its samples are unknown)"
    values = [
        f"batch size {structure.batch_size}{known}",
        counted(structure.loaders, "loader"),
        counted(structure.epochs, "epoch"),
        counted(structure.samples, "sample"),
        counted(structure.ranks, "rank"),
        f"{1e3 * structure.computation_s:.1f} ms of computation a step",
    ]
    return ", ".join(values)


def _assumptions(job: Job, recording: TwinRecording, structure: RecordedStructure | None, paced: bool) -> list[str]:
    """Return the assumptions of the twin. `paced`: steps were inferred from the pauses of threads that read ahead."""
    notes = [
        *loss_notes(job.trace.manifest),
        "a thread's wait for another one of its process is known only if a system call or regular times show it; other waits, "
        "those for sockets too, and calls of other kinds remain as time",
    ]
    if structure is not None:
        notes.append("the computation of a step grows with its batch; on several ranks, the first one writes the checkpoints")
        if structure.requested_at_once:
            notes.append("all batches of an epoch are requested at once, so that its steps are assumed to take equally long")
        if paced:
            notes.append("the rank takes a batch when threads that read ahead go on; it never waits for data")
        if not structure.samples_known:
            notes.append(
                f"the samples of a batch are unknown: reader.batch_size {structure.batch_size} stands for the recorded batch"
            )
    if any(file.written for file in recording.header.files):
        notes.append(f"what the job wrote goes below {_OUTPUT}")
    return notes
