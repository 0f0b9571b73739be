"""Recording a trace: each thread's calls and the times between them, and who waited for whom, from what a trace shows."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from iotwin.benchmark.emulator.recorded.replay_rank import replay
from iotwin.benchmark.fit.fit_trace import fit
from iotwin.common.errors import IotwinError
from iotwin.datagen.datasets.recorded import write_recipe
from iotwin.datagen.layouts.recorded import RecordedLayout
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_events, write_tables
from iotwin.workload_yaml import load
from iotwin.workload_yaml.recording import DUPLICATED, RENAMED, Op, Pipe, TwinRecording
from tests.benchmark.recordings import write_twin
from tests.conftest import run_iotwin
from tests.synthetic import Job, event_table, write_job

MS = 1_000_000
DATA, MADE, PIPE, BACK, OTHER = range(5)
MAIN, LOADER, FEEDER = 100, 101, 102
KINDS = ("dataset", "checkpoint", "pipe", "pipe", "pipe")


def traced(
    path: Path, calls: list[tuple], renamed_to: str | None = None, data_bytes: int = 1000, data: str = "/data/in.bin"
) -> Trace:
    """Write a trace of rows (start and duration in ms, op, pid, tid, file, fd, offset, requested, result, flags) and open it."""
    rows = [(int(start * MS), int(took * MS), *rest, 0) for start, took, *rest in calls]
    events = event_table(rows)
    names = [data, "/out/m.tmp", "pipe:[1]", "pipe:[2]", "pipe:[3]"]
    files = {
        "file_id": range(5), "device": [1] * 5, "inode": range(5), "generation": [1] * 5, "path": names,
        "renamed_to": [None, renamed_to, None, None, None], "container": [None] * 5, "kind": KINDS,
        "size_bytes": [data_bytes, 0, None, None, None], "host": [None] * 5,
    }  # fmt: skip
    processes = {
        "pid": [MAIN, LOADER], "ppid": [1, MAIN], "namespace_pid": [MAIN, LOADER], "comm": ["python", "python"],
        "command_line": ["python job.py"] * 2, "role": ["rank", "loader"], "start_ns": [0, 10 * MS],
        "exit_ns": [100 * MS, 80 * MS], "exit_status": [0, 0], "container": [None] * 2, "host": [None] * 2,
    }  # fmt: skip
    tables = [pa.table(given, schema=kind) for given, kind in ((files, schema.FILES), (processes, schema.PROCESSES))]
    manifest = Manifest(
        status="complete",
        backend="synthetic",
        tool_version="test",
        host=Host("h", "6", 2, 1 << 30, "x86_64", "ext4"),
        target=Target(command=["python"], root_pid=MAIN),
        start_ns=0,
        end_ns=100 * MS,
        exit_status=0,
    )
    manifest.events = write_events(path / "events.parquet", [events])
    write_tables(path, manifest, *tables, schema.PHASES.empty_table(), {}, None, None)
    return Trace(path)


def opened(at: float, pid: int, file: int, fd: int, flags: int = 0, tid: int = 0) -> tuple:
    return (at, 1, "openat", pid, tid or pid, file, fd, None, None, fd, flags)


def moved(at: float, took: float, op: str, pid: int, file: int, size: int, tid: int = 0, fd: int = 3, offset: int | None = None):
    return (at, took, op, pid, tid or pid, file, fd, offset, size, size, 0)


def rows_of(recording: TwinRecording, thread: int) -> list[tuple[str, int, float]]:
    """(operation, subject, milliseconds of thought before it) of a thread."""
    first, end = recording.starts()[thread : thread + 2]
    columns = (recording.columns[name][first:end].tolist() for name in ("op", "subject", "think_ns"))
    return [(Op(op).name, subject, think / MS) for op, subject, think in zip(*columns, strict=True)]


LOADED = [
    opened(12, LOADER, DATA, 5),
    moved(15, 5, "read", LOADER, DATA, 1000, fd=5, offset=0),
    moved(24, 1, "write", LOADER, PIPE, 8),
    (3, 30, "poll", MAIN, MAIN, None, -1, None, None, 1, 0),
    moved(34, 1, "read", MAIN, PIPE, 4),
    moved(36, 1, "read", MAIN, PIPE, 4),
    opened(40, MAIN, MADE, 7, schema.FLAG_CREATE | schema.FLAG_WRITABLE),
    moved(45, 2, "write", MAIN, MADE, 70_000, fd=7, offset=0),
    (60, 3, "fsync", MAIN, MAIN, MADE, 7, None, None, 0, 16),
]


def test_think_times_run_from_end_to_start_and_a_poll_before_a_read_is_its_wait(tmp_path: Path) -> None:
    recording = fit(traced(tmp_path / "t", LOADED)).recording
    assert recording is not None and recording.header.pipes == [Pipe(False)]
    assert rows_of(recording, 0) == [
        ("START", 1, 3), ("POLL", 0, 0), ("PIPE_READ", 0, 1), ("PIPE_READ", 0, 1), ("OPEN", 1, 3), ("WRITE", 1, 4),
        ("SYNC", 1, 13), ("JOIN", 1, 0), ("END", 0, 20),
    ]  # fmt: skip
    assert rows_of(recording, 1) == [
        ("OPEN", 0, 2),
        ("READ", 0, 2),
        ("PIPE_WRITE", 0, 4),
        ("END", 0, 55),
    ]
    inserted = np.isin(recording.columns["op"], [Op.START, Op.JOIN, Op.END])  # rows that stand for no call on a file
    assert all(set(recording.columns[name][inserted].tolist()) == {-1} for name in ("fd", "offset"))
    assert [(file.name, file.written, file.size_bytes) for file in recording.header.files] == [
        ("in.bin", False, 1000),
        ("m.tmp", True, 0),
    ]


def test_a_pipe_that_others_write_to_is_left_out(tmp_path: Path) -> None:
    more = moved(50, 1, "read", MAIN, PIPE, 4)
    recording = fit(traced(tmp_path / "t", [*LOADED, more])).recording
    assert recording is not None and not recording.header.pipes
    assert not {"PIPE_READ", "PIPE_WRITE", "POLL"} & {op for op, *_ in rows_of(recording, 0) + rows_of(recording, 1)}


def test_with_several_writers_reads_take_messages(tmp_path: Path) -> None:
    calls = [
        opened(1, MAIN, DATA, 5),
        moved(12, 1, "write", LOADER, PIPE, 10),
        moved(13, 1, "write", MAIN, PIPE, 30),
        moved(20, 1, "read", MAIN, PIPE, 4),
        moved(22, 1, "read", MAIN, PIPE, 6),
        moved(24, 1, "read", MAIN, PIPE, 30),
    ]
    recording = fit(traced(tmp_path / "t", calls)).recording
    assert recording is not None and recording.header.pipes == [Pipe(True)]
    reads = recording.columns["op"] == Op.PIPE_READ
    assert recording.columns["size"][reads].tolist() == [1, 1]  # the second read found the rest of the first message


@pytest.mark.parametrize("removed", [True, False])
def test_a_thread_that_tries_a_file_and_then_only_writes_to_pipes_waits_for_its_process(tmp_path: Path, removed: bool) -> None:
    """As multiprocessing's queues in a loader do. A thread that keeps the file does something of its own."""
    calls = [
        opened(12, LOADER, DATA, 5),
        (13.2, 0.2, "openat", LOADER, FEEDER, MADE, 7, None, None, 7, schema.FLAG_CREATE | schema.FLAG_WRITABLE),
        moved(13.6, 0.2, "write", LOADER, MADE, 4, tid=FEEDER, fd=7, offset=0),
        *([(14, 0.2, "unlink", LOADER, FEEDER, MADE, -1, None, None, 0, 0)] if removed else []),
        moved(15, 5, "read", LOADER, DATA, 1000, fd=5, offset=0),
        moved(22, 1, "write", LOADER, PIPE, 8, tid=FEEDER),
        moved(24, 1, "read", MAIN, PIPE, 8),
    ]
    recording = fit(traced(tmp_path / "t", calls)).recording
    assert recording is not None
    assert (rows_of(recording, 2)[-2][0] == "WAIT") is removed and rows_of(recording, 2)[-1][0] == "PIPE_WRITE"


def test_a_thread_that_only_writes_to_pipes_waits_for_its_process(tmp_path: Path) -> None:
    calls = [
        opened(12, LOADER, DATA, 5),
        moved(15, 5, "read", LOADER, DATA, 1000, fd=5, offset=0),
        moved(22, 1, "write", LOADER, PIPE, 8, tid=FEEDER),
        moved(24, 1, "read", MAIN, PIPE, 8),
    ]
    recording = fit(traced(tmp_path / "t", calls)).recording
    assert recording is not None and recording.header.threads == [0, 1, 1]
    assert ("POST", 0, 0) in rows_of(recording, 1)
    assert rows_of(recording, 2) == [("WAIT", 0, 0), ("PIPE_WRITE", 0, 2)]


def test_a_descriptor_is_used_after_another_thread_opened_it_and_closed_after_its_last_use(tmp_path: Path) -> None:
    calls = [
        opened(12, LOADER, DATA, 5),
        opened(15, LOADER, DATA, 6),
        moved(18, 2, "read", LOADER, DATA, 10, tid=FEEDER, fd=6, offset=0),
        moved(22, 2, "read", LOADER, DATA, 20, tid=FEEDER, fd=5, offset=0),
        moved(25, 2, "read", LOADER, DATA, 30, tid=FEEDER, fd=6, offset=0),
        (30, 1, "close", LOADER, LOADER, DATA, 6, None, None, 0, 0),
        (33, 1, "close", LOADER, LOADER, DATA, 5, None, None, 0, 0),
    ]
    recording = fit(traced(tmp_path / "t", calls)).recording
    assert recording is not None and recording.header.channels == 2
    # The first read wants the second open, which is posted second: it takes both posts. The later read has nothing to wait for.
    assert rows_of(recording, 1) == [
        ("WAIT", 0, 0), ("WAIT", 0, 0), ("READ", 0, 2), ("READ", 0, 2), ("POST", 1, 0), ("READ", 0, 1), ("POST", 1, 0),
    ]  # fmt: skip
    # The first close wants the read that ended at 27, and comes 3 ms after it as in the job; the other has been read by then.
    assert rows_of(recording, 0) == [
        ("OPEN", 0, 12), ("POST", 0, 0), ("OPEN", 0, 2), ("POST", 0, 0), ("THREAD", 1, 0), ("WAIT", 1, 0), ("WAIT", 1, 0),
        ("CLOSE", 0, 3), ("CLOSE", 0, 2), ("END", 0, 46),
    ]  # fmt: skip


def test_threads_that_share_a_descriptor_do_not_wait_for_one_another(tmp_path: Path) -> None:
    calls = [
        opened(12, LOADER, DATA, 5),
        moved(15, 2, "read", LOADER, DATA, 10, tid=FEEDER, fd=5, offset=0),
        moved(18, 2, "read", LOADER, DATA, 10, tid=FEEDER + 1, fd=5, offset=0),
    ]
    recording = fit(traced(tmp_path / "t", calls)).recording
    assert recording is not None
    assert rows_of(recording, 1) == [("WAIT", 0, 0), ("READ", 0, 2)]
    assert rows_of(recording, 2) == [("WAIT", 1, 0), ("READ", 0, 5)]


def read_by(at: float, took: float, tid: int) -> tuple:
    return moved(at, took, "read", LOADER, DATA, 10, tid=tid, fd=5, offset=0)


def channels_of(tmp_path: Path, calls: list[tuple]) -> tuple[int, list[list[tuple[str, int, float]]]]:
    recording = fit(traced(tmp_path / "t", [opened(11, LOADER, DATA, 5), *calls])).recording
    assert recording is not None
    return recording.header.channels, [rows_of(recording, thread) for thread in range(1, len(recording.header.threads))]


# Reads of two threads, which take unequal times, and 5 ms after the later end both are given the next ones.
SPANS = ((20, 2, 1), (27, 1, 4), (36, 4, 2), (45, 2, 6), (56, 6, 2), (67, 1, 2), (74, 3, 1))
POOL = [read_by(begin, took, FEEDER + thread) for begin, *times in SPANS for thread, took in enumerate(times)]


def test_a_pool_that_is_given_work_after_a_silence_waits_for_the_last_call_before_it(tmp_path: Path) -> None:
    _, threads = channels_of(tmp_path, POOL)
    # Who ended last itself has nothing to wait for; the first waits are for the descriptor.
    one, two = ([(op, think) for op, _, think in rows if op != "POST"] for rows in threads)
    waited, went_on = [("WAIT", 0), ("READ", 5)], [("READ", 5)]
    assert one[2:] == [*went_on, *waited, *went_on, *waited, *went_on, *waited]
    assert two[2:] == [*waited, *went_on, *waited, *went_on, *waited, *went_on]


@pytest.mark.parametrize("periods_ms", [(6, 6), (9, 4), (5, 11)])
def test_threads_that_go_their_own_ways_do_not_wait_for_one_another(tmp_path: Path, periods_ms: tuple[int, int]) -> None:
    calls = [
        read_by(at + 0.25 * thread, 0.5, FEEDER + thread)
        for thread, period in enumerate(periods_ms)
        for at in range(15, 75, period)
    ]
    channels, threads = channels_of(tmp_path, calls)
    assert channels == 2 and all([op for op, *_ in rows].count("WAIT") == 1 for rows in threads[1:])  # for the descriptor


def test_renamed_and_duplicated_files_are_told(tmp_path: Path) -> None:
    made = schema.FLAG_CREATE | schema.FLAG_WRITABLE
    calls = [
        opened(1, MAIN, MADE, 7, made),
        moved(3, 1, "write", MAIN, MADE, 70_000, fd=9, offset=0),
        (5, 1, "close", MAIN, MAIN, MADE, 7, None, None, 0, 16),
        (7, 1, "rename", MAIN, MAIN, MADE, -1, None, None, 0, 0),
        opened(9, MAIN, MADE, 7),
    ]
    recording = fit(traced(tmp_path / "t", calls, renamed_to="/out/sub/m.pt")).recording
    assert recording is not None
    (file,), flags = recording.header.files, recording.columns["flags"]
    assert (file.name, file.renamed_to) == ("m.tmp", "sub/m.pt")
    assert [bool(flag & RENAMED) for flag in flags[:5].tolist()] == [False, False, False, False, True]
    assert flags[0] & DUPLICATED


def test_empty_files_are_kept_and_one_opened_for_writing_is_no_data(tmp_path: Path) -> None:
    """As a lock that is read, and a file without a name (O_TMPFILE) to which nothing was written after all."""
    calls = [opened(1, MAIN, DATA, 3), opened(3, MAIN, MADE, 4, schema.FLAG_WRITABLE), moved(5, 1, "read", MAIN, DATA, 0)]
    fitted = fit(traced(tmp_path / "t", calls, data_bytes=0))
    assert fitted.recording is not None
    assert [(file.name, file.written) for file in fitted.recording.header.files] == [("in.bin", False), ("m.tmp", True)]
    write_recipe(tmp_path / "data.csv", fitted.files)
    made = run_iotwin("generate", "--recipe", tmp_path / "data.csv", "-o", tmp_path / "data")
    assert made.returncode == 0 and (tmp_path / "data" / "in.bin").stat().st_size == 0
    assert run_iotwin("generate", "-o", tmp_path / "data", "--verify").returncode == 0


def test_data_called_like_the_lists_of_a_generated_data_set_have_another_name(tmp_path: Path) -> None:
    calls = [opened(0, MAIN, DATA, 3), moved(1, 0.1, "read", MAIN, DATA, 500)]
    fitted = fit(traced(tmp_path, calls, data="/data/manifest.json"))
    assert fitted.files == [("renamed/manifest.json", 1000)]
    RecordedLayout(tuple(fitted.files))  # which can be generated


def test_a_trace_without_storage_has_nothing_to_replay(tmp_path: Path) -> None:
    with pytest.raises(IotwinError, match="nothing to replay"):
        fit(traced(tmp_path / "t", [moved(12, 1, "write", LOADER, PIPE, 10)]))


@pytest.mark.parametrize("files", [6, 3])
def test_a_replay_makes_every_call_of_a_training_job(tmp_path: Path, files: int) -> None:
    job = Job(files=files, evaluation_files=0, file_bytes=30_000, read_bytes=10_000, epochs=2, batch=1, compute_ns=MS)
    trace = Trace(write_job(tmp_path / "t", job))
    fitted = fit(trace)
    assert fitted.recording is not None and fitted.files == [(f"case_{i:05d}_x.npy", 30_000) for i in range(files)]
    path = write_twin(tmp_path, fitted.recording, think_scale=0)
    replayed = replay(load(path), None)
    events = trace.events_frame(["op", "result"])
    by_op = events["op"].astype(str).value_counts()
    wanted = {"open": "openat", "read": "read", "write": "write", "sync": "fsync", "close": "close"}
    assert {ours: replayed.counts[ours] for ours in wanted} == {ours: by_op[theirs] for ours, theirs in wanted.items()}
    assert replayed.read_bytes == events.loc[events["op"] == "read", "result"].sum()
    assert replayed.written_bytes == events.loc[events["op"] == "write", "result"].sum()


def test_a_packed_recorded_twin_runs_elsewhere_and_names_nothing(tmp_path: Path) -> None:
    from iotwin.loops.twin_archive import pack, unpack

    directory = tmp_path / "proven"
    made = fit(traced(tmp_path / "t", LOADED))
    assert made.recording is not None
    directory.mkdir()
    write_twin(directory, made.recording)
    shutil.move(directory / "job.recording", directory / "twin.recording")
    text = (directory / "twin.yaml").read_text()
    (directory / "twin.yaml").write_text(text.replace("job.recording", "twin.recording"))
    (directory / "dataset.csv").write_text("name,size_bytes\nin.bin,1000\n")
    (directory / "summary.json").write_text(
        '{"overall": 1, "verdict": "", "noise_floor": 1, "best_round": 1, "source": {"counts": {}},'
        ' "rounds": [], "assumptions": []}'
    )
    pack(directory, tmp_path / "x.twin", keep_names=False)
    assert b"in.bin" not in (tmp_path / "x.twin").read_bytes()
    unpack(tmp_path / "x.twin", tmp_path / "here")
    assert not [name for name in ("in.bin", "m.tmp") if name.encode() in (tmp_path / "here" / "twin.recording").read_bytes()]
    done = run_iotwin("emulate", tmp_path / "here" / "twin.yaml", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert '"bytes_read":1000' in done.stdout.replace(" ", "")


def test_the_columns_of_a_recording_are_in_order(tmp_path: Path) -> None:
    recording = fit(Trace(write_job(tmp_path / "t"))).recording
    assert recording is not None and (np.diff(recording.columns["thread"]) >= 0).all()
    for thread in range(len(recording.header.threads)):
        first, end = recording.starts()[thread : thread + 2]
        assert (np.diff(recording.columns["at_ns"][first:end]) >= 0).all()
