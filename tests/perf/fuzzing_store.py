"""What is fuzzed of the trace store: manifests, tables, raw segments, log lines, and recordings of other tools."""

import functools
import io
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iotwin.trace_store import schema
from iotwin.trace_store.columns import rows_table
from iotwin.trace_store.figures.statistics import statistics
from iotwin.trace_store.figures.summary import summarise
from iotwin.trace_store.importers.import_trace import import_trace
from iotwin.trace_store.logs.job_log import phase_edge, read_log, read_values
from iotwin.trace_store.manifest import MANIFEST_NAME, ClockPair, Host, Manifest, Target, read_manifest
from iotwin.trace_store.profiles import attach_profiles
from iotwin.trace_store.raw.finish import recover_trace
from iotwin.trace_store.raw.record_files import RAW, Recording
from iotwin.trace_store.raw.records import (
    BLOCK,
    EVENT,
    GPU_CALL,
    NAME_EXEC,
    NAME_EXIT,
    NAME_FORK,
    NAME_GIVEN,
    NAME_OPENED,
    NameRecord,
    pack_call,
    pack_name,
)
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.syscalls import CALLS
from tests.perf.fuzzing import Subject, as_json, damaged, lying
from tests.synthetic import Job, write_job

_SECOND = 10**9


def subjects() -> list[Subject]:
    """Return the subjects."""
    formats = [
        Subject(f"import {name}", functools.partial(_recording, content), functools.partial(_import, file))
        for name, file, content in _RECORDINGS
    ]
    return [
        Subject("manifest", _manifest, _read_manifest, 4.0),
        Subject("tables", _table, _read_table, 0.1),
        Subject("raw", _raw, _recover, 0.2),
        Subject("log lines", _log, _read_log, 2.0),
        Subject("profile", _profile, _attach),
        *formats,
    ]


# --- manifests


def _good_manifest(status: str = "complete") -> Manifest:
    return Manifest(
        status, "synthetic", Host("node", "6.1", 2, 8 << 30, "x86_64", "ext4"), Target(["python", "train.py"], root_pid=7),
        clock=[ClockPair(1, 2, 3)], counts={"read": 3}, lost={"ring_full": 1}, notes=["a note"], seen=4,
    )  # fmt: skip


def _manifest(rng: random.Random) -> bytes:
    document = msgspec.to_builtins(_good_manifest())
    return as_json(lying(rng, document)) if rng.random() < 0.7 else damaged(rng, as_json(document))


def _read_manifest(content: bytes, directory: Path) -> None:
    (directory / MANIFEST_NAME).write_bytes(content)
    read_manifest(directory)


# --- files of a directory, one of which is bad: the input is its name, a newline and its content


def _put(content: bytes, files: dict[str, bytes], directory: Path) -> Path:
    name, _, bad = content.partition(b"\n")
    for path, good in (files | {name.decode(): bad}).items():
        (directory / "t" / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / "t" / path).write_bytes(good)
    return directory / "t"


def _files_of(make: Callable[[Path], object]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory) / "t")
        paths = [path for path in (Path(directory) / "t").rglob("*") if path.is_file()]
        return {str(path.relative_to(Path(directory) / "t")): path.read_bytes() for path in paths}


@functools.cache
def _trace_files() -> dict[str, bytes]:
    return _files_of(lambda path: write_job(path, Job(files=4, epochs=1, file_bytes=1 << 20, block=True, gpu=True)))


def _table(rng: random.Random) -> bytes:
    files = _trace_files()
    name = rng.choice(sorted(path for path in files if path.endswith(".parquet")))
    if rng.random() < 0.4:
        return name.encode() + b"\n" + damaged(rng, files[name])
    table = pq.read_table(io.BytesIO(files[name]))
    column = rng.choice(table.column_names)
    values = table[column].to_pylist() or [None]
    lies = [value for value in (lying(rng, values), [rng.choice(values)] * len(values)) if isinstance(value, list)]
    try:
        made = pa.array((rng.choice(lies) * 2)[: len(values)] if lies else values)
        if rng.random() < 0.8:
            made = made.cast(table.schema.field(column).type)
        place = table.schema.get_field_index(column)
        table = table.remove_column(place) if rng.random() < 0.1 else table.set_column(place, column, made)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        table = table.slice(rng.randrange(table.num_rows + 1)) if rng.random() < 0.5 else pa.concat_tables([table, table])
    written = io.BytesIO()
    pq.write_table(table, written)
    return name.encode() + b"\n" + written.getvalue()


def _read_table(content: bytes, directory: Path) -> None:
    trace = Trace(_put(content, _trace_files(), directory))
    for table in (trace.files, trace.processes, trace.phases, trace.block, trace.gpu):
        table()
    for kind in schema.SAMPLES:
        trace.samples(kind)
    trace.events_frame()
    if len(content) % 16 == 0:  # they take far longer than the reading
        summarise(trace)
        statistics([trace], ["t"], "process")


# --- raw segments


def _record(path: Path) -> None:
    events = np.zeros(40, EVENT)
    now = 100 * _SECOND
    events["header"] = EVENT.itemsize - 8
    events["start_ns"] = now + np.arange(40) * 1000
    events["duration_ns"], events["result"], events["requested"], events["fd"] = 500, 4096, 4096, 3
    events["inode"], events["device"], events["generation"] = 1 + np.arange(40) % 3, 8 << 20 | 1, 1
    events["pid"] = events["tid"] = 5
    events["call_flags_cpu"] = [pack_call(CALLS[op][0], 8, 1) for op in ("read", "write", "openat", "rename")] * 10
    blocks, gpu = np.zeros(5, BLOCK), np.zeros(5, GPU_CALL)
    blocks["header"], gpu["header"] = BLOCK.itemsize - 8, GPU_CALL.itemsize - 8
    blocks["issue_ns"], blocks["size_bytes"], blocks["comm"] = now + np.arange(5), 4096, b"python"
    gpu["start_ns"], gpu["pid"] = now + np.arange(5), 5
    with Recording(path, _good_manifest("recording")) as recording:
        recording.append_journal("clock", {"monotonic_ns": now, "realtime_ns": now, "uncertainty_ns": 5})
        for kind, text in (
            (NAME_FORK, b"python"),
            (NAME_EXEC, b"/bin/python\0x"),
            (NAME_OPENED, b"/data/a"),
            (NAME_GIVEN, b"/data/b"),
            (NAME_EXIT, b"python"),
        ):
            record = NameRecord(now, kind, 5, 5, 1, 0, 1, 8 << 20 | 1, 1, 0, 10, text)
            recording.append_names(pack_name(record))
        recording.append_events(events)
        recording.append_blocks(blocks)
        recording.append_gpu_calls(gpu)
        recording.append_journal("ledger", {"seen": 40, "lost": {"ring_full": 0}})
        recording.append_journal("container", {"cgroup": 1, "name": "c"})
        recording.append_journal("memory", {"time_ns": now, "available_bytes": 1, "page_cache_bytes": 1, "dirty_bytes": 1})
        recording.append_journal("disk", {
            "time_ns": now, "interval_ns": 1, "device": "sda", "read_bytes": 1, "written_bytes": 1, "reads": 1, "writes": 1, "busy": 0.5,
        })  # fmt: skip
    (path / "logs" / "stdout").write_text(_LOG.replace("1700", "100"))


@functools.cache
def _raw_files() -> dict[str, bytes]:
    return _files_of(_record)


def _raw(rng: random.Random) -> bytes:
    files = _raw_files()
    name = rng.choice(sorted({*files} - {f"{RAW}/lock", f"{RAW}/reserve"}))
    if name.endswith(".jsonl") and rng.random() < 0.7:
        lines = [json.loads(line) for line in files[name].splitlines()]
        content = b"\n".join(as_json(line) for line in lying(rng, lines) or [1])
    else:
        content = damaged(rng, files[name])
    return name.encode() + b"\n" + content


def _recover(content: bytes, directory: Path) -> None:
    trace = _put(content, _raw_files(), directory)
    recover_trace(trace)
    _use(trace, content)


def _use(path: Path, content: bytes) -> None:
    """What we wrote ourselves must be good. Reading it back takes more than half of the time: done for every fourth size."""
    if len(content) % 4:
        return
    trace = Trace(path)
    trace.events_frame()
    for table in (trace.files, trace.processes, trace.phases, trace.block, trace.gpu):
        table()


# --- log lines

_LOG = "".join(
    f':::MLLOG {{"namespace": "", "time_ms": 1700000{second}, "time_ns": 1700{second}000000000, "event_type": "{event}", "key": "{key}", '
    f'"value": 3, "metadata": {{"epoch_num": 1, "rank": 0, "step_num": 5, "step_count": 7}}}}\n'
    for second, event, key in ((0, "INTERVAL_START", "epoch"), (1, "INTERVAL_START", "block"), (2, "INTERVAL_END", "block"),
                               (3, "INTERVAL_END", "epoch"), (4, "POINT_IN_TIME", "batch_size"))
) + (
    ':::MLLOG {"namespace": "", "time_ms": 1700003, "time_ns": 1700003000000000, "event_type": "INTERVAL_END", "key": "all_compute", '
    '"value": {"start": 1700002000000000, "duration": 900000000}, "metadata": {"step_num": 5, "rank": 0}}\n'
) + "[INFO] 2023-11-14T22:13:20.5 Starting epoch 1\n[INFO] 2023-11-14T22:13:21 Ending epoch 1\n"  # fmt: skip


def _log(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return damaged(rng, _LOG.encode(), (b":::MLLOG", b'"time_ns"', b"1e999", b"Infinity"))
    lines = []
    for line in _LOG.splitlines():
        if line.startswith(":::"):
            lines.append(b":::MLLOG " + as_json(lying(rng, json.loads(line[9:])) if rng.random() < 0.3 else json.loads(line[9:])))
        else:
            lines.append(line.encode())
    return b"\n".join(lines) + b"\n"


def _read_log(content: bytes, directory: Path) -> None:
    log = directory / "stdout"
    log.write_bytes(content)
    logged = read_log([log], lambda time_ns: time_ns, (1_700_000_000 * _SECOND, 1_700_000_009 * _SECOND))
    rows_table(logged.phases, schema.PHASES)
    rows_table(logged.parts, schema.PARTS)
    read_values([log])
    for line in content.decode("utf-8", "replace").splitlines():
        phase_edge(line)


# --- recordings of others

_EVENTS = [
    {"name": "FH", "cat": "dftracer", "ph": "M", "pid": 5, "tid": 5, "args": {"name": "/d/x.npz", "value": "ab12"}},
    {"name": "read", "cat": "POSIX", "ph": "X", "pid": 5, "tid": 6, "ts": 1010, "dur": 20,
     "args": {"fhash": "ab12", "count": 4096, "ret": 100, "offset": 512}},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 1, "tid": 1, "ts": 10.5, "dur": 100},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 5.25, "args": {"device": 0, "stream": 7}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 12, "dur": 3, "args": {"bytes": 4096}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1, "tid": 1, "ts": 30, "dur": 2},
    {"ph": "B", "cat": "syscall", "name": "read", "pid": 1, "tid": 1, "ts": 40, "args": {"path": "/d/a", "size": 10}},
    {"ph": "E", "pid": 1, "tid": 1, "ts": 44},
]  # fmt: skip
_RECORDINGS: list[tuple[str, str, object]] = [
    ("chrome", "p.json", {"traceEvents": _EVENTS}),
    ("dftracer", "a.pfw", b"[\n" + b"\n".join(json.dumps(event).encode() for event in _EVENTS)),
    ("strace", "s.out", b'7 1700000000.000100 openat(AT_FDCWD</w>, "a b", O_RDONLY) = 3</w/a b> <0.000010>\n'
     b"7 1700000000.000200 read(3</w/a b>,  <unfinished ...>\n"
     b'8 1700000000.000210 write(1<pipe:[5]>, "x", 1) = 1 <0.000002>\n'
     b'7 1700000000.000300 <... read resumed>"abc"..., 4096) = 3 <0.000100>\n'
     b'7 1700000000.000350 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3</w/a b>, 0) = 0x7f <0.000100>\n'
     b'7 1700000000.000360 lseek(3</w/a b>, 0, SEEK_SET) = 0 <0.000001>\n7 1700000000.000370 dup2(3</w/a b>, 5) = 5 <0.000001>\n'
     b'7 1700000000.000380 preadv2(3</w/a b>, [{iov_base="", iov_len=5}], 1, 9, 0) = 5 <0.000001>\n'
     b'7 1700000000.000390 execve("/bin/x", ["x", "y"], 0x7 /* 3 vars */) = 0 <0.000001>\n'
     b"7 1700000000.000395 clone(child_stack=NULL, flags=SIGCHLD) = 9 <0.000001>\n"
     b'7 12:30:00.000400 read(3</w/a b>, "", 4096) = -1 EIO (Input/output error) <0.000001>\n'
     b"9 1700000000.000600 +++ killed by SIGKILL +++\n7 1700000000.000700 +++ exited with 0 +++\n"),
    ("fio", "v2.log", b"fio version 2 iolog\n/d/f add\n/d/f open\n/d/f read 0 4096\n/d/f wait 1500 0\n/d/f write 4096 512\n"
     b"/d/f sync 0 0\n/d/f close\n"),
    ("fio 3", "v3.log", b"fio version 3 iolog\n0 /d/f add\n0 /d/f open\n5 /d/f read 8192 4096\n9 /d/f datasync 0 0\n"),
    ("darshan", "dxt.txt", b"# darshan log version: 3.41\n# exe: ./ior -a POSIX\n# DXT, file_id: 1645, file_name: /scratch/a file\n"
     b"# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)\n"
     b" X_MPIIO       0  write        0               0      262144      0.0020      0.0033\n"
     b" X_POSIX       0  write        0               0      262144      0.0029      0.0032\n"
     b" X_POSIX       3   read        0          262144        4096      0.5000      0.5100 [1]\n"),
    ("artifact", "", {
        "trace_read.out": "TIMESTAMP PID OFFSET RET LAT FILENAME\n" + "".join(
            f"{100 * _SECOND + n * 1000} 9 {n * 4096} 4096 500 case_{n}.npy\n" for n in range(9)
        ),
        "trace_openat.out": f"TIME PID COMM LAT PATH\n{100 * _SECOND} 9 python 500 /data/case_0.npy case_0.npy\n",
        "trace_close.out": f"{100 * _SECOND + 9000} 9 3 500 /data/case_0.npy\n",
        "trace_create_del.out": f"{100 * _SECOND + 9100} 9 unlink() 500 a /data/a\n{100 * _SECOND} 9 mkdir() 755 400 /data/b\n",
        "trace_bio.out": f"TIMESTAMP PID COMM DISK R/W BYTES SECTOR LAT\n{100 * _SECOND} 9 python sda R 4096 8 77\n",
        "trace_time_align.out": f"{100 * _SECOND} 12:00:00\n{101 * _SECOND} 12:00:01\n{102 * _SECOND} 12:00:02\n",
        "cpu.out": "12:00:00 PM CPU %usr %nice %sys %iowait %irq %soft %idle\n12:00:01 PM all 10.00 0.00 1.00 2.00 0.00 0.00 87.00\n",
        "gpu.out": "#Date Time gpu pid type sm mem enc dec fb command\n20221012 12:00:01 0 9 C 50 20 - - 1024 python\n",
        "iostat.json": '{"sysstat": {"hosts": [{"statistics": [{"timestamp": "10/12/22 12:00:01", "disk": '
        '[{"disk_device": "sda", "r/s": 1.0, "w/s": 2.0, "rMB/s": 1.5, "wMB/s": 0.5, "util": 40.0}]}]}]}}',
        "pids_1.out": "UID PID SPID PPID C STIME TTY TIME CMD\nroot 9 9 1 0 12:00 ? 00:00:01 python train.py\n",
        "job.log": ':::MLLOG {"key": "init_start", "time_ms": 1665576000000}\n:::MLLOG {"key": "init_stop", "time_ms": 1665576001000}\n',
    }),
]  # fmt: skip


def _recording(good: object, rng: random.Random) -> bytes:
    if isinstance(good, bytes):
        return damaged(rng, good)
    assert isinstance(good, dict)
    if "traceEvents" in good:
        return as_json(lying(rng, good)) if rng.random() < 0.7 else damaged(rng, as_json(good))
    name = rng.choice(sorted(good))
    return name.encode() + b"\n" + damaged(rng, good[name].encode())


def _import(file: str, content: bytes, directory: Path) -> None:
    if file:
        source = directory / file
        source.write_bytes(content)
    else:
        files = next(good for name, _, good in _RECORDINGS if name == "artifact")
        assert isinstance(files, dict)
        source = _put(content, {name: text.encode() for name, text in files.items()}, directory)
    import_trace(source, directory / "out")
    _use(directory / "out", content)


def _profile(rng: random.Random) -> bytes:
    return as_json(lying(rng, {"baseTimeNanoseconds": 1_700_000_000 * _SECOND, "traceEvents": _EVENTS}))


def _attach(content: bytes, directory: Path) -> None:
    trace = _put(b"x\n", _trace_files(), directory)
    (directory / "p.json").write_bytes(content)
    attach_profiles(Trace(trace), [directory / "p.json"])
    Trace(trace).gpu()
