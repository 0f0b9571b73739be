"""Recordings of other tools with what no tool would write: left out and counted, or refused, in one line."""

import json

import pytest

from iotwin.common.errors import IotwinError
from iotwin.trace_store.importers.import_trace import import_trace
from iotwin.trace_store.profiles import attach_profiles
from iotwin.trace_store.reader import Trace
from tests.synthetic import Job, write_job

_GOOD = {"name": "read", "cat": "POSIX", "ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {"ret": 7, "fname": "/d/a"}}


def test_deeply_nested_chrome_json(tmp_path):
    lines = [json.dumps(_GOOD), '{"name": "read", "cat": "POSIX", "args": ' + "[" * 100_000 + "]" * 100_000 + "}"]
    (tmp_path / "a.pfw").write_text("[\n" + "\n".join(lines))
    _, imported = import_trace(tmp_path / "a.pfw", tmp_path / "t")
    assert imported.torn == {"a.pfw": 1} and Trace(tmp_path / "t").manifest.events == 1


@pytest.mark.parametrize("change", [{"ts": 10**20}, {"dur": 1e300}, {"args": {"ret": 10**30, "offset": 2**63, "count": -(2**70)}},
                                    {"pid": "99999999999999999999999"}, {"args": {"ret": "Infinity"}}])  # fmt: skip
def test_numbers_that_no_call_has(tmp_path, change):
    (tmp_path / "a.pfw").write_text("[\n" + json.dumps(_GOOD) + "\n" + json.dumps(_GOOD | change))
    import_trace(tmp_path / "a.pfw", tmp_path / "t")
    assert 1 <= len(Trace(tmp_path / "t").events_frame()) <= 2


@pytest.mark.parametrize("number", [2**31, 2**63, 10**30])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_artifact_s_open_with_a_number_that_no_call_has(tmp_path, place, number):
    fields = ["1000000000", "42", "python", "900", "/d/a", "a"]
    lines = [" ".join(fields), " ".join([*fields[:place], str(number), *fields[place + 1 :]])]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "trace_openat.out").write_text("TIME PID COMM LAT FULLPATH FILENAME\n" + "\n".join(lines) + "\n")
    _, imported = import_trace(tmp_path / "a", tmp_path / "t")
    frame = Trace(tmp_path / "t").events_frame()
    is_possible = number == 2**31 and place != 1
    assert len(frame) == 1 + is_possible and imported.torn["trace_openat.out"] == 1 - is_possible


@pytest.mark.parametrize("odd", [["a", 1], {"a": 1}, None, 1.5])
def test_threads_that_no_number_names(tmp_path, odd):
    """They are told from one another all the same: each end belongs to the begin of its own thread."""
    events = [
        {"name": "read", "cat": "POSIX", "ph": phase, "pid": 1, "tid": tid, "ts": ts, "args": {"ret": 7, "fname": "/d/a"}}
        for phase, tid, ts in (("B", odd, 10), ("B", 8, 20), ("E", odd, 40), ("E", 8, 90))
    ]
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": events}))
    import_trace(tmp_path / "p.json", tmp_path / "t")
    assert Trace(tmp_path / "t").events_frame()["duration_ns"].tolist() == [30_000, 70_000]


@pytest.mark.parametrize("depth", [900, 980, 1000, 5000])
@pytest.mark.parametrize("key", ["name", "pid", "cat", "args"])
def test_nesting_that_is_barely_decoded(tmp_path, key, depth):
    event = json.dumps(_GOOD | {key: "deep"}).replace('"deep"', "[" * depth + "]" * depth)
    (tmp_path / "a.pfw").write_text("[\n" + json.dumps(_GOOD) + "\n" + event)
    import_trace(tmp_path / "a.pfw", tmp_path / "t")
    assert len(Trace(tmp_path / "t").events_frame()) >= 1


def test_a_great_many_calls_of_one_time(tmp_path):
    (tmp_path / "fio.log").write_text("fio version 3 iolog\n" + "".join(f"0 /d/f read {n} 1\n" for n in range(3)))
    lines = "\n".join(json.dumps(_GOOD) for _ in range(300_000))
    (tmp_path / "a.pfw").write_text("[\n" + lines)
    import_trace(tmp_path / "a.pfw", tmp_path / "t")
    assert Trace(tmp_path / "t").manifest.events == 300_000


def test_a_small_file_takes_little_memory(tmp_path):
    """It was read by one call that asked for all that a file may hold."""
    import tracemalloc

    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": [_GOOD]}))
    tracemalloc.start()
    import_trace(tmp_path / "p.json", tmp_path / "t")
    assert tracemalloc.get_traced_memory()[1] < 1 << 28
    tracemalloc.stop()


@pytest.mark.parametrize(
    "line",
    [
        '7 1700000000.000300 read(3</d/a>, "", 4096) = 99999999999999999999999999 <0.000001>',
        "7 99999999999999999999.000300 close(3</d/a>) = 0 <0.000001>",
        "99999999999999 1700000000.000300 close(3</d/a>) = 0 <0.000001>",
        '7 1700000000.000300 read(3</d/a>, "", 4096) = 099 <0.000001>',
        "7 1700000000.000300 +++ killed by SIGNONE +++",
        "7 1700000000.000300 mmap(NULL, x, PROT_READ, MAP_PRIVATE, 3</d/a>, 0) = 0x7f <0.000100>",
        "7 1700000000.000300 close(99999999999999999999</d/a>) = 0 <0.000001>",
    ],
)
def test_strace_text_with_numbers_that_no_call_has(tmp_path, line):
    (tmp_path / "s.out").write_text('7 1700000000.000100 read(3</d/a>, "", 4096) = 3 <0.000010>\n' + line + "\n")
    import_trace(tmp_path / "s.out", tmp_path / "t")
    assert Trace(tmp_path / "t").events_frame()["result"].iloc[0] == 3


def test_a_profile_that_began_at_no_possible_time(tmp_path):
    trace = Trace(write_job(tmp_path / "t", Job(files=4, epochs=1)))
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 5}
    (tmp_path / "p.json").write_text(json.dumps({"baseTimeNanoseconds": 10**30, "traceEvents": [kernel]}))
    with pytest.raises(IotwinError, match="impossible begin"):
        attach_profiles(trace, [tmp_path / "p.json"])
