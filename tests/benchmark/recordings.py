"""Recordings made by hand: rows as tuples, for tests of what replays them."""

from pathlib import Path

import numpy as np

from iotwin.trace_store.schema import FLAG_CREATE, FLAG_WRITABLE
from iotwin.workload_yaml.recording import COLUMNS, Header, Mark, Op, Pipe, RecordedFile, TwinRecording, write_recording

CREATE = FLAG_CREATE | FLAG_WRITABLE


def row(thread: int, op: Op, subject: int = 0, **given: int) -> dict[str, int]:
    """Return a row; what is not given is none or zero."""
    usual = {"think_ns": 0, "fd": 3, "offset": -1, "size": 0, "flags": 0, "at_ns": 0}
    return {"thread": thread, "op": op, "subject": subject, **usual, **given}


def recording(
    rows: list[dict[str, int]],
    files: list[RecordedFile],
    parents: list[int] | None = None,
    threads: list[int] | None = None,
    pipes: list[Pipe] | None = None,
    channels: int = 0,
    marks: list[Mark] | None = None,
) -> TwinRecording:
    """Return the recording of the rows, by default of one thread of one process."""
    header = Header(1, files, pipes or [], channels, parents or [-1], threads or [0], marks or [])
    return TwinRecording(header, {name: np.array([each[name] for each in rows], kind) for name, kind in COLUMNS.items()})


def write_twin(folder: Path, made: TwinRecording, **settings: object) -> Path:
    """Write the recording, its data set (zeros) and the YAML that replays it, and return the YAML's path."""
    write_recording(made, folder / "job.recording")
    for file in made.header.files:
        if not file.written:
            (folder / "data" / file.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "data" / file.name).write_bytes(bytes(file.size_bytes))
    lines = [f"    {key}: {value}" for key, value in {"file": "job.recording", **settings}.items()]
    text = (
        f"dataset: {{data_folder: {folder}/data}}\ncheckpoint: {{checkpoint_folder: {folder}/made}}\n"
        f"output: {{folder: {folder}/results}}\ntwin:\n  recorded:\n"
    )
    (folder / "twin.yaml").write_text(text + "\n".join(lines) + "\n")
    return folder / "twin.yaml"
