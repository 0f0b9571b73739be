"""Read the logs of instrumented runs into one table: the duration of each part of each step, by configuration.

Logs may be MLLOG lines with the value `{"start": NS, "duration": NS}` (of iotwin's workloads and the paper artifact), the
emulator's lines `[INFO] key NS`, or TensorFlow's timelines, one step a file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.common.workloads import WORKLOADS

PARTS = (
    "sample_load", "sample_preproc", "batch_load", "batch_preproc", "load_batch_mem", "load_batch_gpu", "all_compute", "step_end",
    "model_forward_pass", "loss_tensor_calc", "model_backward_pass", "model_optim_step", "cum_loss_fn_calc",
)  # fmt: skip
COLUMNS = ("run", "workload", "variant", "gpus", "batch", "key", "rank", "block", "seconds")
_MOST_TIMELINE_BYTES = 1 << 30  # largest timeline file that is read
_DURATION = r'"key": ?"(?P<key>\w+)".*"duration": ?(?P<ns>\d+)'
_EMULATOR = r"\[INFO\].*?\b(?P<key>[a-z_]+):? (?P<ns>\d+)\s*$"
_RANK = r'(?:^\[(?P<first>\d+)\]|"rank": ?(?P<second>\d+))'
# Log lines at which a block of steps begins (an epoch, a block, training up to an evaluation): two forms of MLLOG, and DLIO's.
_BEGINS = r'"(?:epoch|block|training)_start"|"INTERVAL_START", ?"key": ?"(?:epoch|block|training)"|[Ss]tarting (?:epoch|block)'
_BLOCK_ENDS = r"Ending block \d+ - (?P<steps>\d+) steps"
_POINT = r'"key": ?"(?P<key>world_size|global_batch_size)", ?"value": ?(?P<value>\d+)'
_TIME = r'"time_ms": ?(?P<ms>\d+)'
_GPUS, _BATCH = re.compile(r"(\d+)_?-?gpus?(?![a-z])", re.I), re.compile(r"(?:batch_?-?|(?<![a-z])b)(\d+)", re.I)
_COPY_TO_DEVICE = re.compile(r"memcpy.?(?:htod|h2d)", re.I)
_BLOCK_BYTES = 64 << 20


@dataclass
class InstrumentedRun:
    """The directory of one run, its known parameters, its logs, and its timelines (TensorFlow's profiles of steps).

    Each log is a file, or several: one of each host.
    """

    directory: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    logs: list[list[Path]] = field(default_factory=list)
    timelines: list[Path] = field(default_factory=list)


def read_steps(directories: list[Path]) -> pd.DataFrame:
    """Return a row for each timed part of each step of all runs under `directories`, with COLUMNS; times in seconds.

    `block` counts the epochs or blocks of a run from 1. Raises UsageError if a path is no directory, and IotwinError if no
    instrumented run is found.
    """
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory; give directories of instrumented runs")
    frames = [_read_run(run) for directory in directories for run in _find_runs(directory)]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        names = ", ".join(map(str, directories))
        raise IotwinError(f"no instrumented run in {names}; run the variant instrumented, sleep or profiler, or emulate one")
    return pd.concat(frames, ignore_index=True)


def _find_runs(directory: Path) -> Iterator[InstrumentedRun]:
    """Yield the runs in `directory`: cells of iotwin run, traces, and folders with logs or timelines."""
    if (directory / "cell.json").is_file():
        cell = read_foreign_json(directory / "cell.json")
        printed = sorted([*directory.glob("trace/logs/stdout"), *directory.glob("trace/*.trace/logs/stdout")])
        logs = [[log] for log in sorted((directory / "output").glob("*.log"))]
        timelines = sorted((directory / "output").glob("timeline-*.json"))
        known = {"workload": cell["workload"], "variant": cell["variant"], "gpus": cell["ranks"], "batch": cell["batch"]}
        yield InstrumentedRun(directory, known, [printed, *logs] if printed else logs, timelines)
        return
    if (directory / "manifest.json").is_file() and (directory / "logs" / "stdout").is_file():
        yield InstrumentedRun(directory, {}, [[directory / "logs" / "stdout"]])
        return
    logs = [[log] for log in sorted(directory.glob("*.log"))]
    timelines = sorted(directory.glob("timeline-*.json"))
    if logs or timelines:
        yield InstrumentedRun(directory, {}, logs, timelines)
    for below in sorted(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()):
        yield from _find_runs(below)


def _read_run(run: InstrumentedRun) -> pd.DataFrame:
    frames = [_read_log(log, run.parameters) for log in run.logs]
    if run.timelines:
        frames.append(_read_timelines(run.timelines))
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame(columns=list(COLUMNS))
    # The emulator also logs what it prints, so the longest log contains all parts.
    frame = max(frames, key=len)
    text = str(run.directory)
    guesses = {
        "workload": next(
            (name for name in WORKLOADS if name in text or any(name in log.name for (log, *_) in run.logs)), "unknown"
        ),
        "variant": run.directory.name,
        "gpus": _number(_GPUS, text),
        "batch": _number(_BATCH, text),
    }
    known: dict[str, Any] = {name: run.parameters.get(name) or guess for name, guess in guesses.items()}
    return frame.assign(run=text, **known)[list(COLUMNS)]


def _number(pattern: re.Pattern[str], text: str) -> int:
    """Return the number in the last match of `pattern` in `text`, or 1 if there is none."""
    found = pattern.findall(text)
    return int(found[-1]) if found else 1


def _lines(log: Path) -> pa.ChunkedArray:
    """Return the lines of a log without blank lines."""
    if not log.stat().st_size:
        return pa.chunked_array([], pa.string())
    # The delimiter is a character that no log holds, so every line is one field. latin-1 accepts damaged bytes.
    read = csv.ReadOptions(column_names=["line"], block_size=_BLOCK_BYTES, encoding="latin-1")
    parse = csv.ParseOptions(delimiter="\x01", quote_char=False, escape_char=False, invalid_row_handler=lambda row: "skip")
    convert = csv.ConvertOptions(column_types={"line": pa.string()}, strings_can_be_null=False)
    try:
        return csv.read_csv(log, read, parse, convert)["line"]
    except pa.ArrowInvalid as error:
        raise IotwinError(f"{log} cannot be read as text: {str(error).splitlines()[0]}") from None


def _lines_of_hosts(logs: list[Path]) -> pa.ChunkedArray:
    """Return the lines of the logs of several hosts by their times, since blocks begin in the log of rank 0 only."""
    if len(logs) == 1:
        return _lines(logs[0])
    lines = pa.chunked_array([chunk for log in logs for chunk in _lines(log).chunks], pa.string())
    times = pc.struct_field(pc.extract_regex(lines, _TIME).combine_chunks(), "ms")
    return lines.take(pc.sort_indices(pc.cast(times, pa.int64())))


def _read_log(log: list[Path], parameters: dict[str, Any]) -> pd.DataFrame:
    """Return key, rank, block and seconds of each timed part in `log`, and add the logged configuration to `parameters`."""
    lines = _lines_of_hosts(log)
    points = pc.extract_regex(lines, _POINT).drop_null()
    # `points` has only a few lines, from the start of the log
    values = {row["key"]: int(row["value"]) for row in points.to_pylist()}
    gpus = values.get("world_size", 1)
    parameters.setdefault("gpus", values.get("world_size"))
    if "global_batch_size" in values:
        parameters.setdefault("batch", values["global_batch_size"] // gpus)
    block = np.cumsum(pc.match_substring_regex(lines, _BEGINS).to_numpy())
    if block.any():
        block = np.maximum(block, 1)  # another rank may load its first samples before rank 0 logs the first block
    emulated = _timed(lines, block, _EMULATOR)
    found = pd.concat([_timed(lines, block, _DURATION), _in_blocks(emulated, lines)], ignore_index=True)
    if block.any():
        # The emulator logs the start of an epoch and of its first block; only blocks with steps count.
        found["block"] = pd.factorize(found["block"], sort=True)[0] + 1
    return found


def _in_blocks(emulated: pd.DataFrame, lines: pa.ChunkedArray) -> pd.DataFrame:
    """Add a column with the block of each part. The emulator prints all parts at its end, so blocks follow from their steps."""
    steps = pc.cast(pc.struct_field(pc.extract_regex(lines, _BLOCK_ENDS).drop_null().combine_chunks(), "steps"), pa.int64())
    number = emulated.groupby("key").cumcount()
    if not len(steps) or not len(number) or number.max() + 1 != sum(steps.to_pylist()):
        return emulated
    ends = np.cumsum(steps.to_numpy(zero_copy_only=False))
    return emulated.assign(block=np.searchsorted(ends, number.to_numpy(), side="right") + 1)


def _timed(lines: pa.ChunkedArray, block: np.ndarray, pattern: str) -> pd.DataFrame:
    fields = pc.extract_regex(lines, pattern)
    keep = pc.is_valid(fields).to_numpy()
    kept = fields.filter(pa.array(keep)).combine_chunks()
    ranks = pc.extract_regex(lines.filter(pa.array(keep)), _RANK).combine_chunks()
    rank = np.zeros(len(kept), np.int64)
    for name in ("first", "second"):
        text = pc.struct_field(ranks, name)
        text = pc.if_else(pc.equal(pc.fill_null(text, ""), ""), "0", text)
        rank = np.maximum(rank, pc.cast(text, pa.int64()).to_numpy(zero_copy_only=False))
    seconds = pc.cast(pc.struct_field(kept, "ns"), pa.int64()).to_numpy(zero_copy_only=False) / 1e9
    keys = pc.struct_field(kept, "key").to_pandas()
    frame = pd.DataFrame({"key": keys, "rank": rank, "block": block[keep], "seconds": seconds})
    return frame[frame["key"].isin(PARTS) | frame["key"].str.startswith("eval_")]


def _read_timelines(timelines: list[Path]) -> pd.DataFrame:
    """Return the compute time of each timeline: from the end of the batch's copy to the device until the last event ends.

    The longest copy to the device is the batch's copy. If there is none, as on CPUs, the time starts at the first event.
    """
    seconds = [_compute_s(path) for path in timelines]
    return pd.DataFrame({"key": "all_compute", "rank": 0, "block": 0, "seconds": seconds})


def _compute_s(path: Path) -> float:
    try:
        events = read_foreign_json(path, _MOST_TIMELINE_BYTES)["traceEvents"]
        frame = pd.DataFrame(events)
        timed = frame.loc[frame["ph"] == "X", ["name", "ts", "dur"]]
    except (IotwinError, ValueError, KeyError, TypeError):
        raise IotwinError(f"{path} is no timeline of TensorFlow; remove it or take the profile again") from None
    if timed.empty:
        raise IotwinError(f"{path} holds no timed event; take the profile again")
    copies = timed[timed["name"].str.contains(_COPY_TO_DEVICE)]
    begin = timed["ts"].min()
    if len(copies):
        longest = int(copies["dur"].to_numpy().argmax())
        begin = (copies["ts"] + copies["dur"]).to_numpy()[longest]
    return float((timed["ts"] + timed["dur"]).max() - begin) / 1e6
