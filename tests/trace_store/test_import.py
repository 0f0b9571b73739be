"""Foreign recordings as traces: small self-made samples of every format, torn lines counted, nothing half-written."""

import gzip
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.columns import numbers
from iotwin.trace_store.importers import artifact_calls, sorted_calls
from iotwin.trace_store.importers.import_trace import import_trace
from iotwin.trace_store.importers.sorted_calls import Runs, calls_table, same_label, sorted_by_start
from iotwin.trace_store.importers.text import column_blocks
from iotwin.trace_store.reader import Trace
from tests.processes import call, one_line

SECOND = 1_000_000_000
BOOT = 100 * SECOND  # monotonic ns at 12:00:00 local


# --- the artifact: line by line, as its own scripts do, to hold the columnar reader against


def _plainly(lines):
    """Rows (start, duration, pid, offset, result, name) of trace_read.out and the number of torn lines, a line at a time."""
    rows, torn, started = [], 0, False
    for line in lines:
        started |= line[:1].isdigit()
        if not started or not line:
            continue
        match = re.fullmatch(
            r"\s*([0-9]{1,18})\s+([0-9]{1,18})\s+(0x[0-9a-f]+|-?\d+)\s+(0x[0-9a-f]+|-?[0-9]+)\s+([0-9]{1,18})(?:\s+(\S.*?))?\s*",
            line,
        )
        words = (match[6] or "").split() if match else []
        if (
            match is None
            or max(abs(int(match[i], 0 if "x" in match[i] else 10)) for i in (3, 4)) >= 2**64
            or int(match[2]) >= 2**31
            or (len(words) > 1 and words[0].isdigit())
        ):
            torn += 1
            continue
        offset, result = (int(match[i], 16 if "x" in match[i] else 10) for i in (3, 4))
        offset, result = (value - 2**64 if value >= 2**63 else value for value in (offset, result))
        took = int(match[5])
        rows.append((int(match[1]) - took, took, int(match[2]), None if offset < 0 else offset, result, match[6] or None))
    return rows, torn


_WHOLE = st.builds(
    lambda end, pid, offset, result, took, name: f"{end} {pid} {offset} {result} {took} {name}",
    st.integers(10**9, 10**15), st.integers(1, 4_000_000),
    st.one_of(st.integers(0, 2**50).map(str), st.integers(0, 2**40).map(hex), st.integers(1, 40).map(lambda e: str(2**64 - e))),
    st.one_of(st.integers(0, 2**31), st.integers(1, 40).map(lambda e: 2**64 - e), st.integers(-40, -1)),
    st.integers(0, 10**8), st.sampled_from(["case_00001_x.npy", "a name with blanks", "", "part-0.tfrecord", "é.npy", "7"]),
)  # fmt: skip
_BROKEN = st.one_of(
    st.builds(lambda line, cut: line[:cut], _WHOLE, st.integers(0, 60)),
    st.builds(lambda a, b, cut: a[:cut] + b, _WHOLE, _WHOLE, st.integers(1, 60)),
    st.sampled_from(["", "Lost 7 events", "12 x", "1 2 3 4", "9 9 9 9 9", "1 2 - 4 5 a", "1  2 3 4  5   a"]),
)  # fmt: skip


def _rows(runs):
    """(start, duration, pid, offset, result, name) of the calls in order."""
    names = ("start_ns", "duration_ns", "pid", "offset", "result")
    return [
        (*row, None if path < 0 else runs.paths[path])
        for part in runs.parts() for table in part
        for *row, path in zip(*(table[name].to_pylist() for name in (*names, "path")), strict=True)
    ]  # fmt: skip


@given(st.lists(st.one_of(_WHOLE, _WHOLE, _BROKEN), max_size=40))
@settings(max_examples=100)
def test_columns_are_the_rows_of_reading_line_by_line(lines):
    text = "\n".join(["Attaching 4 probes...", "TIMESTAMP PID OFFSET RET LAT FILENAME", *lines, ""])
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace_read.out"
        path.write_text(text)
        torn, runs = {}, Runs()
        artifact_calls.read_calls(path.parent, torn, runs)
    expected, expected_torn = _plainly(text.split("\n"))
    found = _rows(runs)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert torn["trace_read.out"] == expected_torn


def test_a_file_of_many_blocks_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("iotwin.trace_store.importers.text._BLOCK_BYTES", 1000)
    lines = [f"{10**9 + i} {i % 7} {i} 4096 100 f{i % 5}" if i % 50 else f"{i} torn" for i in range(1, 2001)]
    (tmp_path / "trace_read.out").write_text("\n".join(["header"] * 100 + lines))
    found = list(column_blocks(tmp_path / "trace_read.out", artifact_calls._TRANSFER, artifact_calls.transfer_line, lambda t: t))
    assert len(found) > 10 and sum(block.torn for block in found) == 40
    assert [end for block in found for end in block.table["end_ns"].to_pylist()] == [10**9 + i for i in range(1, 2001) if i % 50]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=20), st.integers(0, 20))
def test_numbers_are_those_of_the_column(values, start):
    column = pa.array(values, pa.int32())
    expected = [-7 if value is None else value for value in values]
    assert numbers(column.slice(start), -7).tolist() == expected[start:]
    assert numbers(pa.chunked_array([column, column]), -7).tolist() == 2 * expected


@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=6))
@settings(max_examples=60)
def test_runs_are_the_stable_sort_of_their_calls_in_memory_or_in_a_file(blocks):
    """Calls that start at the same time keep the order in which they came, however few of them fit in memory or in a chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_calls, "_MOST_HELD_BYTES", 2000)
        patch.setattr(sorted_calls, "_CHUNK_ROWS", 7)
        patch.setattr(sorted_calls, "_SAMPLED_EACH", 3)
        runs, expected = Runs(), []
        for number, starts in enumerate(blocks):
            place = np.arange(len(starts))
            table = calls_table(
                start_ns=np.array(starts, np.int64), duration_ns=place, pid=np.full(len(starts), number, np.int32),
                op=same_label("read", len(starts)), path=same_label(f"f{number}", len(starts)), result=place,
            )  # fmt: skip
            runs.add(sorted_by_start(table))
            expected += [(start, i, number, None, i, f"f{number}") for i, start in enumerate(starts)]
        expected.sort(key=lambda row: row[0])
        assert _rows(runs) == expected and runs.rows == len(expected)
        assert runs.drop_before(25) == sum(row[0] < 25 for row in expected)
        assert _rows(runs) == [row for row in expected if row[0] >= 25]


def test_a_full_scratch_directory_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    source = write_artifact(tmp_path / "run")
    monkeypatch.setattr(sorted_calls, "_MOST_HELD_BYTES", 100)
    monkeypatch.setattr(sorted_calls.tempfile, "TemporaryFile", full)
    with pytest.raises(IotwinError, match=r"No space left on device.*TMPDIR"):
        import_trace(source, tmp_path / "t.trace")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def write_artifact(place, mllog_hour=12):
    """A recording of ten seconds from 12:00:00 local time, UTC, on 2022-10-12; the job's log is stamped at `mllog_hour`."""
    place.mkdir()
    at = [BOOT + i * SECOND // 2 for i in range(20)]
    lines = ["Attaching 2 probes...", "TIMESTAMP PID OFFSET RET LAT FILENAME"]
    lines += [f"{t} 42 {i * 4096} 4096 1000000 case_00001_x.npy" for i, t in enumerate(at)]
    lines += [f"{at[3] + 5} 42 0 {2**64 - 11} 2000", f"{at[4]} 42 0 40"]
    (place / "trace_read.out").write_text("\n".join(lines) + "\n")
    (place / "trace_write.out").write_text(f"TIMESTAMP PID OFFSET RET LAT FILENAME\n{at[15]} 41 0 1048576 50 checkpoint.pt\n")
    (place / "trace_openat.out").write_text(
        f"TIMESTAMP PID COMM LAT FULLPATH FILENAME\n{at[2]} 42 pt main 900 /raw_data/case_00001_x.npy case_00001_x.npy\n"
    )
    (place / "trace_close.out").write_text(f"TIMESTAMP PID FD LAT FILENAME\n{at[16]} 42 5 300 case_00001_x.npy\n")
    (place / "trace_create_del.out").write_text(
        f"header\n{at[5]} 41 mkdir() 511 700 /ckpt/new\n{at[6]} 41 rmdir() 700 /ckpt/old\n"
        f"{at[7]} 41 unlink() 600 old.pt /ckpt/old.pt\n{at[7]} 4"
    )
    (place / "trace_bio.out").write_text(
        "TIMESTAMP PID COMM DISK R/W BYTES SECTOR LAT\n"
        f"{at[3]} 42 python nvme0n1 R 131072 2048 400000\n{at[16]} 9 kworker/0:1 H nvme0n1 WS 1048576 4096 900000\n"
    )
    (place / "trace_time_align.out").write_text(
        "".join(f"{BOOT + i * 10_000_000 + 3_000_000} 12:00:{(i * 10 + 3) // 1000:02d}\n" for i in range(300))
    )
    (place / "cpu.out").write_text(
        "Linux 5.4.0 (host) \t10/12/2022 \t_x86_64_\t(8 CPU)\n\n"
        "12:00:01 PM  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle\n"
        "12:00:02 PM  all   50.00    0.00   10.00    5.00    0.00    0.00    0.00    0.00    0.00   35.00\n"
        "12:00:03 PM  all   60.00    0.00   10.00    5.00    0.00    0.00    0.00    0.00    0.00   25.00\n"
    )
    (place / "gpu.out").write_text(
        "#Date       Time        gpu        pid  type    sm   mem   enc   dec    fb   command\n"
        " 20221012   12:00:02      0       4242     C    80    30     -     -  4000   python\n"
        " 20221012   12:00:02      0       9999     C     5     1     -     -   100   stranger\n"
        " 20221012   12:00:02      1          -     -     -     -     -     -     -   -\n"
    )
    (place / "iostat.json").write_text(
        '{"sysstat": {"hosts": [{"nodename": "h", "statistics": [\n'
        '{"timestamp": "10/12/2022 12:00:02 PM", "disk": [{"disk_device": "nvme0n1", "r/s": 10, "rMB/s": 2.0, "w/s": 1,'
        ' "wMB/s": 0.5,'
        ' "util": 40.0}]},\n{"timestamp": "10/12/2022 12:00:03 PM", "di'
    )
    (place / "pids_1.out").write_text(
        "UID PID SPID PPID C STIME TTY TIME CMD\nroot 41 41 1 0 12:00 ? 00:00:01 python main.py\n"
        "root 42 42 41 0 12:00 ? 00:00:01 python main.py\n"
    )
    unix = [int(pd.Timestamp(f"2022-10-12T{mllog_hour}:00:{s:02d}Z").value // 10**6) for s in (1, 2, 8)]
    keys = ("init_start", "init_stop", "epoch_start"), ("epoch_stop",)
    mllog = [
        f":::MLLOG {json.dumps({'key': key, 'time_ms': t, 'metadata': {'epoch_num': 1}})}"
        for key, t in zip(keys[0], (unix[0], unix[1], unix[1]), strict=True)
    ]
    mllog += [
        f"[0] :::MLLOG {json.dumps({'key': 'epoch_stop', 'time_ms': unix[2], 'metadata': {'epoch_num': 1}})}",
        ':::MLLOG {"key": "epo',
    ]
    (place / "unet3d.log").write_text("\n".join(mllog))
    return place


def test_an_artifact_directory_becomes_a_trace(tmp_path):
    manifest, _ = import_trace(write_artifact(tmp_path / "run"), tmp_path / "t.trace")
    trace = Trace(tmp_path / "t.trace")
    events, files = trace.events_frame(), trace.files()
    assert manifest.backend == "import artifact" and manifest.status == "complete"
    # Two calls ended before the log's init at 12:00:01 and are left out, the artifact's way.
    assert events["op"].astype(str).value_counts().to_dict() == {
        "read": 19, "write": 1, "openat": 1, "close": 1, "mkdir": 1, "rmdir": 1, "unlink": 1,
    }  # fmt: skip
    failed = events[events["result"] < 0]
    assert failed["result"].tolist() == [-11] and failed["file_id"].isna().all()
    assert (events["start_ns"].diff().dropna() >= 0).all()
    kinds = dict(zip(files["path"], files["kind"], strict=True))
    # Opens have whole paths, reads and closes last parts only: they are of one file.
    assert kinds["/raw_data/case_00001_x.npy"] == "dataset" and "case_00001_x.npy" not in kinds
    assert kinds["checkpoint.pt"] == "checkpoint"
    case = files.loc[files["path"] == "/raw_data/case_00001_x.npy", "file_id"].iloc[0]
    assert {"openat", "read"} <= set(events.loc[events["file_id"] == case, "op"])
    processes = trace.processes().set_index("pid")
    assert processes.at[42, "role"] == "loader" and processes.at[41, "role"] == "rank" and processes.at[42, "ppid"] == 41
    notes = " ".join(manifest.notes)
    assert (
        "1 torn line of trace_read.out" in notes
        and "1 torn line of trace_create_del.out" in notes
        and "1 torn line of MLLOG" in notes
    )


def test_an_artifact_s_samples_phases_and_block_requests_are_on_one_clock(tmp_path):
    import_trace(write_artifact(tmp_path / "run"), tmp_path / "t.trace")
    trace = Trace(tmp_path / "t.trace")
    phases = trace.phases()
    assert phases["phase"].tolist() == ["init", "epoch"] and phases["epoch"].tolist() == [1, 1]
    # The second changes between 993 and 1003 ms after the boot time, so the clocks are known to 5 ms.
    assert np.allclose((phases["start_ns"] - BOOT) / 1e9, [1, 2], atol=0.006)
    cpu, gpu, disk = (trace.samples(kind) for kind in ("cpu", "gpu", "disk"))
    assert cpu["user"].tolist() == pytest.approx([0.5, 0.6]) and np.allclose((cpu["time_ns"] - BOOT) / 1e9, [2, 3], atol=0.006)
    assert gpu["sm_percent"].tolist() == [80, 0] and gpu["memory_used_bytes"][0] == 4000 << 20
    assert trace.samples("gpu_process")["command"].tolist() == ["python", "stranger", "-"]
    assert disk["read_bytes"].tolist() == [2 << 20] and disk["busy"].tolist() == pytest.approx([0.4])
    block = trace.block()
    assert block["op"].tolist() == ["read", "write"] and block["origin"].tolist() == ["task", "kernel"]
    assert block["comm"].tolist() == ["python", "kworker/0:1 H"] and block["flags"].tolist() == [0, 1]
    assert block["issue_ns"].tolist() == [BOOT + 3 * SECOND // 2 - 400_000, BOOT + 8 * SECOND - 900_000]


def test_a_time_zone_that_the_log_contradicts_is_refused(tmp_path):
    source = write_artifact(tmp_path / "run", mllog_hour=16)
    with pytest.raises(IotwinError, match=r"in time zone UTC the job's log lies 4 hours outside .* --timezone"):
        import_trace(source, tmp_path / "t.trace")
    assert not (tmp_path / "t.trace").exists()
    import_trace(source, tmp_path / "t.trace", timezone="America/Toronto")
    assert len(Trace(tmp_path / "t.trace").phases()) == 2
    with pytest.raises(UsageError, match="no IANA time zone"):
        import_trace(source, tmp_path / "u.trace", timezone="../etc/passwd")


def test_dlio_s_log_gives_phases(tmp_path):
    source = write_artifact(tmp_path / "run")
    (source / "unet3d.log").unlink()
    (source / "dlio.log").write_text(
        "[INFO] 2022-10-12T12:00:02.500000 Starting epoch 1\n"
        "[INFO] 2022-10-12T12:00:04.000000 Starting checkpoint 1 for epoch 1\n"
        "[INFO] 2022-10-12T12:00:04.250000 Ending checkpoint 1\n"
        "[INFO] 2022-10-12T12:00:05.000000 Ending epoch 1 - 42 steps completed\n"
    )
    import_trace(source, tmp_path / "t.trace")
    phases = Trace(tmp_path / "t.trace").phases()
    assert phases["phase"].tolist() == ["epoch", "checkpoint"]
    assert ((phases["end_ns"] - phases["start_ns"]) / 1e9).tolist() == [2.5, 0.25]


# --- the other formats


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_s_own_text(tmp_path):
    program = "open('in', 'w').write('x' * 5000); f = open('in', 'rb', buffering=0); f.seek(1000); f.read(2000); f.read(9999)"
    program += "; import os; os.fork() or os._exit(3)"
    command = ["strace", "-f", "-ttt", "-T", "-yy", "-o", tmp_path / "strace.out", sys.executable, "-S", "-c", program]
    subprocess.run(command, cwd=tmp_path, check=True)
    manifest, imported = import_trace(tmp_path / "strace.out", tmp_path / "t.trace")
    trace = Trace(tmp_path / "t.trace")
    assert manifest.backend == "import strace" and imported.torn == {"strace.out": 0}
    events = trace.events_frame().merge(trace.files()[["file_id", "path"]], on="file_id", how="left")
    mine = events[events["path"] == str(tmp_path / "in")]
    moved = mine[mine["op"].isin(("read", "write"))]
    assert moved[["op", "offset", "result"]].astype({"op": str}).to_numpy().tolist() == [
        ["write", 0, 5000],
        ["read", 1000, 2000],
        ["read", 3000, 2000],
    ]
    assert (moved["duration_ns"] > 0).all() and mine["op"].astype(str).isin(("openat", "close")).any()
    processes = trace.processes()
    assert 3 in processes["exit_status"].tolist() and processes["command_line"].str.contains(" -S").all()
    lines = (tmp_path / "strace.out").read_text().splitlines()
    assert sum(" openat(" in line and "unfinished" not in line for line in lines) <= (events["op"] == "openat").sum()


def test_strace_text_that_is_torn_or_interleaved(tmp_path):
    (tmp_path / "s.out").write_text(
        '7 1700000000.000100 openat(AT_FDCWD</w>, "a b", O_RDONLY) = 3</w/a b> <0.000010>\n'
        "7 1700000000.000200 read(3</w/a b>,  <unfinished ...>\n"
        '8 1700000000.000210 write(1<pipe:[5]>, "x", 1) = 1 <0.000002>\n'
        '7 1700000000.000300 <... read resumed>"abc"..., 4096) = 3 <0.000100>\n'
        '7 1700000000.000400 read(3</w/a b>, "", 4096) = -1 EIO (Input/output error) <0.000001>\n'
        "7 1700000000.000500 read(3</w/a b>, 0x5\n" "9 1700000000.000600 <... read resumed>) = 3\n" "nonsense\n"
        "7 1700000000.000700 +++ exited with 0 +++\n"
    )  # fmt: skip
    _, imported = import_trace(tmp_path / "s.out", tmp_path / "t.trace")
    events = Trace(tmp_path / "t.trace").events_frame()
    assert events["op"].astype(str).tolist() == ["openat", "read", "write", "read"]
    assert events["result"].tolist() == [3, 3, 1, -5] and events["duration_ns"].tolist() == [10_000, 100_000, 2_000, 1_000]
    assert events["start_ns"].iloc[1] == 1_700_000_000_000_200_000 and np.isnan(events["offset"].iloc[2])
    assert imported.torn == {"s.out": 3}


def test_strace_text_with_times_of_day_goes_on_after_midnight(tmp_path):
    times = ["23:59:58", "23:59:59", "00:00:01", "23:59:59", "00:00:02", "12:00:00", "23:00:00", "00:00:00"]
    (tmp_path / "s.out").write_text("".join(f'7 {time} write(3</w/a>, "x", 1) = 1 <0.000002>\n' for time in times))
    import_trace(tmp_path / "s.out", tmp_path / "t.trace")
    starts_ns = Trace(tmp_path / "t.trace").events_frame()["start_ns"]
    day = 24 * 3600
    assert sorted((starts_ns - starts_ns.min()) // 10**9) == [0, 1, 1, 3, 4, day // 2 + 2, day - 3598, day + 2]


def test_fio_logs_of_both_versions(tmp_path):
    (tmp_path / "v2.log").write_text(
        "fio version 2 iolog\n/d/f add\n/d/f open\n/d/f read 0 4096\n/d/f wait 1500 0\n"
        "/d/f write 4096 512\n/d/f sync 0 0\n/d/f cl\n/d/f close\n"
    )
    _, imported = import_trace(tmp_path / "v2.log", tmp_path / "2.trace")
    events = Trace(tmp_path / "2.trace").events_frame()
    assert events["op"].astype(str).tolist() == ["openat", "read", "write", "fsync", "close"] and imported.torn == {"v2.log": 1}
    assert (
        events["result"].tolist() == [0, 4096, 512, 0, 0] and events["start_ns"].iloc[2] - events["start_ns"].iloc[1] == 1_500_001
    )
    (tmp_path / "v3.log").write_text("fio version 3 iolog\n0 /d/f add\n0 /d/f open\n5 /d/f read 8192 4096\n9 /d/f datasync 0 0\n")
    import_trace(tmp_path / "v3.log", tmp_path / "3.trace")
    events = Trace(tmp_path / "3.trace").events_frame()
    assert events["offset"].iloc[1] == 8192 and events["start_ns"].tolist()[1:] == [5_000_001, 9_000_001]


_DXT = """# darshan log version: 3.41
# exe: ./ior -a POSIX
# DXT, file_id: 1645, file_name: /scratch/a file
# DXT, rank: 0, hostname: n1
# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)
 X_MPIIO       0  write        0               0      262144      0.0020      0.0033
 X_POSIX       0  write        0               0      262144      0.0029      0.0032
 X_POSIX       3   read        0          262144        4096      0.5000      0.5100 [1]
 X_POSIX       3   read        1          262
# DXT, file_id: 9, file_name: /scratch/b
 X_MPIIO       1   read        0               0          10      0.1000      0.1001
"""


def test_darshan_s_extended_tracing(tmp_path):
    (tmp_path / "dxt.txt").write_text(_DXT)
    manifest, imported = import_trace(tmp_path / "dxt.txt", tmp_path / "t.trace")
    trace = Trace(tmp_path / "t.trace")
    events = trace.events_frame().merge(trace.files()[["file_id", "path"]], on="file_id")
    assert events[["op", "pid", "offset", "result", "path"]].astype({"op": str}).to_numpy().tolist() == [
        ["write", 1, 0, 262144, "/scratch/a file"], ["read", 2, 0, 10, "/scratch/b"],
        ["read", 4, 262144, 4096, "/scratch/a file"],
    ]  # fmt: skip
    assert events["duration_ns"].tolist() == [300_000, 100_000, 10_000_000] and imported.torn == {"dxt.txt": 1}
    assert manifest.target.command == ["./ior", "-a", "POSIX"] and trace.processes()["comm"].tolist() == [
        "rank 0",
        "rank 1",
        "rank 3",
    ]
    assert "left out: 1 row of MPI-IO," in " ".join(manifest.notes)


@pytest.mark.parametrize("packed", [False, True])
def test_dftracer_s_lines(tmp_path, packed):
    lines = [
        {"id": 0, "name": "FH", "cat": "dftracer", "ph": "M", "pid": 5, "tid": 5, "args": {"name": "/d/x.npz", "value": "ab12"}},
        {"id": 1, "name": "open64", "cat": "POSIX", "ph": "X", "pid": 5, "tid": 6, "ts": 1000, "dur": 7,
         "args": {"fhash": "ab12", "ret": "4"}},
        {"id": 2, "name": "read", "cat": "POSIX", "ph": "X", "pid": 5, "tid": 6, "ts": 1010, "dur": 20,
         "args": {"fhash": "ab12", "count": 4096, "ret": 100, "offset": 512}},
        {"id": 3, "name": "NPZReader.open", "cat": "reader", "ph": "X", "pid": 5, "tid": 6, "ts": 990, "dur": 50, "args": {}},
    ]  # fmt: skip
    text = "[\n" + "\n".join(json.dumps(line) for line in lines) + '\n{"id":4,"name":"rea'
    source = tmp_path / ("a.pfw.gz" if packed else "a.pfw")
    source.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    manifest, imported = import_trace(source, tmp_path / "t.trace")
    trace = Trace(tmp_path / "t.trace")
    events = trace.events_frame()
    assert (
        manifest.backend == "import dftracer"
        and imported.torn == {source.name: 1}
        and trace.files()["path"].tolist() == ["/d/x.npz"]
    )
    assert events[["start_ns", "duration_ns", "pid", "tid", "result"]].to_numpy().tolist() == [
        [1_000_000, 7_000, 5, 6, 4], [1_010_000, 20_000, 5, 6, 100],
    ]  # fmt: skip
    assert events["op"].astype(str).tolist() == ["open", "read"] and events["requested"].iloc[1] == 4096


def test_a_profiler_s_chrome_trace(tmp_path):
    document = {"schemaVersion": 1, "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 1, "tid": 1, "ts": 10.5, "dur": 100},
        {"ph": "X", "cat": "kernel", "name": "void gemm<float>", "pid": 0, "tid": 7, "ts": 20, "dur": 5.25,
         "args": {"device": 0, "stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 12, "dur": 3,
         "args": {"bytes": 4096}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1, "tid": 1, "ts": 30, "dur": 2},
        {"ph": "B", "cat": "syscall", "name": "read", "pid": 1, "tid": 1, "ts": 40, "args": {"path": "/d/a", "size": 10}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 44},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": "stream 7", "ts": 1, "dur": 1},
    ]}  # fmt: skip
    (tmp_path / "p.json").write_text(json.dumps(document))
    import_trace(tmp_path / "p.json", tmp_path / "t.trace")
    trace = Trace(tmp_path / "t.trace")
    gpu = trace.gpu()
    assert gpu["kind"].tolist() == ["copy", "kernel", "sync"] and gpu["direction"].astype(object).fillna("").tolist() == [
        "host_to_device",
        "",
        "",
    ]
    assert gpu["duration_ns"].tolist() == [3000, 5250, 2000] and gpu["size_bytes"][0] == 4096
    assert trace.phases()[["phase", "step", "start_ns", "end_ns"]].to_numpy().tolist() == [["step", 7, 10_500, 110_500]]
    events = trace.events_frame()
    assert events[["start_ns", "duration_ns", "result"]].to_numpy().tolist() == [[40_000, 4_000, 10]]


# --- what may go wrong


def test_bad_sources_end_in_one_line_and_leave_nothing(tmp_path):
    (tmp_path / "text").write_text("nothing of the kind\n")
    (tmp_path / "cut.pfw.gz").write_bytes(gzip.compress(b'[\n{"ph":"X"}\n' * 9999)[:50])
    (tmp_path / "empty.out").write_text("fio version 2 iolog\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for arguments, status, expected in (
        (["none", "-o", "t"], 2, "no such file"), (["text", "-o", "t"], 2, "no format known"),
        (["text", "-o", "t", "--format", "stracee"], 2, "'strace'"),
        (["cut.pfw.gz", "-o", "t", "--format", "dftracer"], 1, "cut off"), (["empty.out", "-o", "t"], 1, "holds no call"),
        (["text", "-o", "taken"], 2, "holds other files"), (["text", "-o", "t", "--format", "artifact"], 2, "is not a directory"),
        (["text", "-o", "t", "--format", "fio"], 2, "fio version"),
        (["text", "-o", "t", "--format", "strace"], 1, "holds no call"),
        (["text", "-o", "t", "--format", "chrome"], 1, "holds no call"),
    ):  # fmt: skip
        words = [
            tmp_path / word if word in ("none", "text", "cut.pfw.gz", "empty.out", "t", "taken") else word for word in arguments
        ]
        result = call("import", *words)
        assert result.returncode == status and expected in one_line(result), (arguments, result.stderr)
        assert sorted(tmp_path.rglob("*")) == before


def test_a_failing_write_leaves_the_old_trace(tmp_path, monkeypatch):
    (tmp_path / "v3.log").write_text("fio version 3 iolog\n0 /d/f open\n5 /d/f read 8192 4096\n")
    import_trace(tmp_path / "v3.log", tmp_path / "t.trace")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("iotwin.trace_store.writer.pq.write_table", full)
    with pytest.raises(IotwinError, match="No space left"):
        import_trace(tmp_path / "v3.log", tmp_path / "t.trace", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.trace", "v3.log"]
    assert Trace(tmp_path / "t.trace").manifest.events == 2


def test_names_from_a_recording_are_text(tmp_path):
    (tmp_path / "v3.log").write_text("fio version 3 iolog\n0 ../../<script> open\n5 ../../<script> read 8192 4096\n")
    import_trace(tmp_path / "v3.log", tmp_path / "t.trace")
    assert Trace(tmp_path / "t.trace").files()["path"].tolist() == ["../../<script>"]
    assert sorted(path.name for path in tmp_path.parent.iterdir() if "<script>" in path.name) == []
