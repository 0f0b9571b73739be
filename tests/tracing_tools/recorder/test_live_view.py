"""The live view shows what the records say."""

import json
import os
import pty
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.trace_store.raw import records
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.syscalls import NUMBER_OF_OP
from iotwin.tracing_tools.recorder import live_view
from iotwin.tracing_tools.recorder.live_phases import Lines, LivePhases
from iotwin.tracing_tools.recorder.live_tally import LiveTally
from iotwin.tracing_tools.recorder.live_view import LiveView
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import start


def events(op: str, count: int, duration_ns: int, result: int, inode: int = 7) -> np.ndarray:
    made = np.zeros(count, records.EVENT)
    made["call_flags_cpu"], made["duration_ns"] = records.pack_call(NUMBER_OF_OP[op]), duration_ns
    made["result"], made["inode"], made["device"] = result, inode, 1
    return made


def name_of(inode: int, path: bytes) -> bytes:
    fields = {"parent": 0, "result": 0, "device": 1, "generation": 0, "mode": 0, "size": 0}
    return records.pack_name(records.NameRecord(5, records.NAME_OPENED, 1, 1, inode=inode, text=path, **fields))


def test_rates_and_latencies_are_those_of_the_records(capsys, monkeypatch):
    now_ns = 5_000_000_000
    monkeypatch.setattr(live_view, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    tally = LiveTally()
    view = LiveView("t", tally)
    tally.add_events(events("pread64", 99, 1000, 4096))
    tally.add_events(events("pread64", 1, 1_000_000, -5))
    tally.add_events(events("pwrite64", 10, 50_000, 100))
    now_ns += 2_000_000_000
    view.refresh({"ring_full": 3})
    line = capsys.readouterr().err
    assert "198 KiB/s in 50 calls/s" in line and "500 B/s in 5 calls/s" in line
    median = re.search(r"median (\d+) ns", line)
    assert median is not None and abs(int(median[1]) - 1000) < 1000 * (2 ** (1 / 16) - 1)  # half a bucket
    assert "all 55 calls/s, 3 lost" in line
    view.refresh({})  # not due again
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_tables(monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    tally = LiveTally()
    view = LiveView("run.trace", tally)
    tally.add_names(name_of(7, b"/data/a [bold]\xff") + name_of(8, b"/data/b"))
    tally.add_events(events("read", 5, 1000, 1 << 20))
    tally.add_events(events("read", 5, 1000, 1 << 21, inode=8))
    view._last_ns -= 1_000_000_000
    view.refresh({})
    view.close()
    shown = capfd.readouterr().err
    assert "run.trace" in shown and "none lost" in shown
    assert shown.index("/data/b") < shown.index("/data/a [bold]\\xff")


def mllog(kind: str, key: str, prefix: str = "", **metadata: object) -> str:
    event = {"time_ms": 5, "event_type": f"INTERVAL_{kind}", "key": key, "metadata": metadata}
    return f"{prefix}:::MLLOG {json.dumps(event)}\n"


PRINTED = (
    ("no phase yet\n", ""),
    (mllog("START", "init"), "init"),
    (mllog("END", "init") + mllog("START", "epoch", epoch_num=2) + ":::MLLOG {torn\n", "epoch 2"),
    (mllog("START", "epoch", epoch_num="three") + mllog("START", "else"), "epoch 2"),
    (mllog("START", "step", step_num=17), "epoch 2, step 17"),
    (mllog("START", "step", prefix="[1] ", step_num=16) + mllog("END", "step") + "[OUTPUT] epoch\n", "epoch 2"),
    (mllog("END", "epoch"), "step 16"),
    (
        mllog("END", "step", rank=1) + "[OUTPUT] 2026-01-31T12:00:00.5 Starting saving checkpoint 3 after epoch 1\n",
        "checkpoint 3",
    ),
    ("[OUTPUT] 2026-01-31T12:00:01 Finished saving checkpoint 3 for epoch 1\n", ""),
)


@given(st.lists(st.integers(1, 60), min_size=1))
def test_phases_are_those_last_printed_however_the_log_arrives(sizes):
    phases = LivePhases()
    log, number = Lines(phases.add_line), 0
    for content, expected in PRINTED:
        left = content.encode()
        while left:
            size = sizes[number % len(sizes)]
            log.write(left[:size])
            left, number = left[size:], number + 1
        assert phases.current() == expected


@pytest.mark.root
def test_lines_in_a_log(tmp_path):
    (tmp_path / "line").write_text(mllog("START", "epoch", epoch_num=3))
    script = "cat line; until grep -q 'epoch 3: read' shown; do head -c 100000 /dev/zero > zeros; sleep 0.4; done; echo said"
    with (tmp_path / "shown").open("w") as shown:
        tracer = start("trace", "-o", "t", "--live", "--", "sh", "-c", script, cwd=tmp_path, stderr=shown)
        output, _ = tracer.communicate(timeout=PATIENCE_S)
    said = (tmp_path / "shown").read_text()
    assert tracer.returncode == 0, said
    assert "calls/s" in said and "0 lost" in said and output == ""
    assert " s, epoch 3: read" in said
    assert (tmp_path / "t" / "logs" / "stdout").read_text().endswith("said\n")


@pytest.mark.root
def test_what_limits_the_job_comes_after_the_last_line_of_a_log(tmp_path):
    assert run_iotwin("generate", "unet3d", "-o", tmp_path / "data", "--samples", 8, "--scale", 0.05).returncode == 0
    job = ["/usr/bin/env", "python3", ROOT / "docs" / "train.py", "--epochs", 1, "--num-workers", 1, "--decode-ms", 200]
    done = run_iotwin("trace", "-o", "t", "--live", "--", *map(str, job), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rates, *_, verdict, following = [line for line in done.stderr.splitlines() if "finishing" not in line]
    assert "calls/s" in rates and following.startswith("  next: ")
    assert verdict.strip() == json.loads(run_iotwin("info", tmp_path / "t", "--json").stdout)["verdict"]["sentence"]


@pytest.mark.root
def test_a_terminal_is_drawn_on_and_the_trace_is_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    master, slave = pty.openpty()
    script = f"until [ -e {tmp_path}/shown ]; do head -c 100000 /dev/zero > {tmp_path}/zeros; sleep 0.4; done"
    tracer = start("trace", "-o", tmp_path / "t", "--live", "--", "sh", "-c", script, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 65536):
            shown += part
            if b"zeros" in shown and b"per second" in shown:
                (tmp_path / "shown").touch()
    except OSError:
        pass  # the terminal's other end is closed
    assert tracer.wait(PATIENCE_S) == 0
    assert (tmp_path / "shown").exists()
    assert Trace(tmp_path / "t").manifest.lost_events == 0
