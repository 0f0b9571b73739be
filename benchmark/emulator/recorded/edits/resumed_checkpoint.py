"""The checkpoint from which an edited rank resumes: which files it reads, and how."""

import re
from typing import NamedTuple

import numpy as np

from iotwin.benchmark.emulator.journal import ResumedRun
from iotwin.benchmark.emulator.recorded.edits.requested_edits import Edits
from iotwin.benchmark.emulator.recorded.edits.row_builder import RowBuilder, ThreadRows
from iotwin.common.errors import UsageError
from iotwin.workload_yaml import TwinResume
from iotwin.workload_yaml.recorded_structure import structure_of
from iotwin.workload_yaml.recording import Op, RecordedBatches, TwinRecording

_RESTORE_FD = 1 << 20  # descriptor of the reads that restore a checkpoint; no call of a job uses it
_READ_BYTES = 1 << 20  # size of one read


class _SavedFile(NamedTuple):
    """A file of a checkpoint.

    `number`: index of the file in the recording. `steps`: number of training steps that had begun when the file was last written.
    `owner`: the rank that wrote the file.
    """

    number: int
    name: str
    pattern: str
    steps: int
    owner: int
    in_renamed_folder: bool


class SavedFiles:
    """The files of checkpoints that the job had written at `moment_ns`."""

    def __init__(self, recording: TwinRecording, moment_ns: int) -> None:
        self._recording, self._moment_ns = recording, moment_ns
        columns, header, batches = recording.columns, recording.header, recording.batches
        is_saved = np.array([file.checkpoint and file.written for file in header.files] or [False])
        writes = np.isin(columns["op"], [Op.WRITE, Op.COPY_TO]) & (columns["size"] > 0)
        on_saved = writes & is_saved[np.where(writes, columns["subject"], 0)]
        self._saves = bool(on_saved.any())
        trained = np.repeat([each.training for each in batches.passes], [each.batches for each in batches.passes])
        self._begun_ns = np.sort(np.array(batches.taken_ns, np.int64)[trained])
        ranks = list(dict.fromkeys(each.process for each in batches.passes))
        rows = np.flatnonzero(on_saved & (columns["at_ns"] < moment_ns))
        last = {int(columns["subject"][row]): row for row in rows[np.argsort(columns["at_ns"][rows], kind="stable")].tolist()}
        self._files = []
        for index, row in last.items():
            file, process = header.files[index], header.threads[columns["thread"][row]]
            name = file.renamed_to or file.name
            steps = int(np.searchsorted(self._begun_ns, columns["at_ns"][row]))
            owner = process if process in ranks else ranks[0]
            self._files.append(_SavedFile(index, name, _pattern(name), steps, owner, _folder(name) != _folder(file.name)))

    def are_read(self, resume: TwinResume) -> bool:
        """Return True if a resumed run reads a checkpoint.

        Raises UsageError if the job had not written its first one by then, or if the recording does not show which files are
        checkpoints.
        """
        if resume.mode == "skip_reads":
            return False
        if not self._saves:
            if not self._recording.header.ranks:
                raise UsageError(
                    "twin.resume: this recording is of an earlier version and does not show which files are checkpoints; "
                    "fit the trace again"
                )
            return False
        if not self._files:
            raise UsageError(
                f"twin.resume: the job had written no checkpoint by step {resume.step} of epoch {resume.epoch}; resume later, or "
                "set twin.resume.mode to skip_reads"
            )
        return True

    def read_by(self, builder: RowBuilder, thread: ThreadRows, rank: int) -> None:
        """Append to `thread` how the process `rank` inspects the checkpoints, and reads the newest one.

        A rank reads the files that it has written; if it has written none, those of the first rank. If a checkpoint's folder was
        renamed after it was complete, its files are read twice: to verify and to load them.
        """
        newest = self._newest()
        owners = sorted({file.owner for file in newest})
        own = [file for file in newest if file.owner == (rank if rank in owners else owners[0])]
        for file, is_read in self._inspected():
            self._read(builder, thread, file, _READ_BYTES if is_read else 0)
        for _ in range(1 + any(file.in_renamed_folder for file in own)):
            for file in own:
                self._read(builder, thread, file, _READ_BYTES)

    def _newest(self) -> list[_SavedFile]:
        """Return the files of the newest checkpoint: those written after its last step, and the other files in their renamed
        folders.
        """
        steps = max(file.steps for file in self._files)
        folders = {_folder(file.name) for file in self._files if file.in_renamed_folder and file.steps == steps}
        return [file for file in self._files if file.steps == steps or (file.in_renamed_folder and _folder(file.name) in folders)]

    def _inspected(self) -> list[tuple[_SavedFile, bool]]:
        """Return (file, True if it is read) for each existing file in renamed folders that a later save opens."""
        columns, found = self._recording.columns, []
        kinds: dict[str, set[int]] = {}  # operations of later saves, by pattern of names
        for file in self._files:
            own = np.flatnonzero((columns["op"] < Op.PIPE_WRITE) & (columns["subject"] == file.number))
            later = np.searchsorted(self._begun_ns, columns["at_ns"][own]) > file.steps
            kinds.setdefault(file.pattern, set()).update(columns["op"][own[later]].tolist())
            removed = (columns["op"][own] == Op.UNLINK) & (columns["at_ns"][own] < self._moment_ns)
            if file.in_renamed_folder and not removed.any():
                found.append(file)
        found.sort(key=lambda file: (file.steps, Op.READ not in kinds[file.pattern]))
        return [(file, Op.READ in kinds[file.pattern]) for file in found if Op.OPEN in kinds[file.pattern]]

    @staticmethod
    def _read(builder: RowBuilder, thread: ThreadRows, file: _SavedFile, most_bytes: int) -> None:
        """Append the opening and closing of a file. Between them, append its reads of at most `most_bytes`; 0: no reads."""
        index, size_bytes = builder.found_file(file.number)
        thread.add(Op.OPEN, index, fd=_RESTORE_FD)
        for offset in [*range(0, size_bytes, most_bytes), size_bytes] if most_bytes else ():
            thread.add(Op.READ, index, min(most_bytes, size_bytes - offset), _RESTORE_FD, offset)
        thread.add(Op.CLOSE, index, fd=_RESTORE_FD)


def resumed_record(edited: TwinRecording, edits: Edits, batches: RecordedBatches) -> ResumedRun | None:
    """Return how the edited recording of a rank reaches the step at which it resumes; None if the run begins at its first step.

    `batches`: the recording's batches before the edit.
    """
    resume, recorded = edits.resume, structure_of(batches)
    if resume is None:
        return None
    samples = resume.step * round(recorded.batch_size * edits.batch) * recorded.ranks
    if resume.mode == "replay_all":
        samples += (resume.epoch - 1) * round(recorded.samples * edits.samples / edits.ranks)
    skips = resume.mode in ("restore", "skip_reads")
    restores = (edited.columns["op"] == Op.READ) & (edited.columns["fd"] == _RESTORE_FD)
    read_bytes = int(edited.columns["size"][restores].sum())
    return ResumedRun(resume.mode, resume.epoch, resume.step, *((samples, 0) if skips else (0, samples)), read_bytes)


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
