"""Parts of steps in the lines of a job's log: what counts as one, and on which clock it is."""

import json

import pytest

from iotwin.trace_store.logs.job_log import read_log

_NOW_NS = 1_700_000_000_000_000_000  # UNIX time; the test's monotonic clock began one day before
_UPTIME_NS = 86_400_000_000_000


def _monotonic(time_ns: int) -> int:
    return time_ns - _NOW_NS + _UPTIME_NS


def _line(value, key="all_compute", event="INTERVAL_END", **metadata):
    entry = {"event_type": event, "key": key, "time_ns": _NOW_NS, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(entry)}\n"


def _read(tmp_path, *lines):
    (tmp_path / "stdout").write_text("".join(lines))
    return read_log([tmp_path / "stdout"], _monotonic)


def test_a_part_has_its_own_start_and_where_it_belongs(tmp_path):
    later = _line({"start": _UPTIME_NS - 10, "duration": 10}, rank=1, epoch_num=2, step_num=7)
    earlier = _line({"start": _UPTIME_NS - 500, "duration": 20}, key="load_batch_mem", step_num=7)
    logged = _read(tmp_path, later, earlier)
    assert logged.parts == [
        part("load_batch_mem", _UPTIME_NS - 500, 20, step=7),
        part("all_compute", _UPTIME_NS - 10, 10, rank=1, epoch=2, step=7),
    ]


def part(name, start_ns, duration_ns, rank=0, epoch=None, step=None, stage=None, version=None):
    own = {"name": name, "start_ns": start_ns, "duration_ns": duration_ns, "rank": rank}
    return own | {"epoch": epoch, "step": step, "stage": stage, "version": version}


def test_a_pass_of_a_pipeline_has_its_stage_version_and_minibatch(tmp_path):
    forward = _line({"start": _UPTIME_NS - 10, "duration": 10}, key="F", rank=3, stage=2, version=5, minibatch=7)
    strange = _line({"start": _UPTIME_NS - 5, "duration": 1}, key="B", stage="first", version=2**40)
    logged = _read(tmp_path, forward, strange)
    assert logged.parts == [part("f", _UPTIME_NS - 10, 10, 3, step=7, stage=2, version=5), part("b", _UPTIME_NS - 5, 1)]
    assert logged.phases == [] and logged.torn == 0


def test_a_part_timed_by_another_clock_ended_when_it_was_logged(tmp_path):
    (part,) = _read(tmp_path, _line({"start": 5, "duration": 1000})).parts
    assert (part["start_ns"], part["duration_ns"]) == (_UPTIME_NS - 1000, 1000)


@pytest.mark.parametrize(
    "value",
    [
        {"start": 5}, {"start": 1.5, "duration": 2}, {"start": True, "duration": 2}, {"start": 5, "duration": -1},
        {"start": 5, "duration": 1 << 70}, {"start": -(1 << 80), "duration": _UPTIME_NS + 1}, [1, 2], "long", None,
    ],
)  # fmt: skip
def test_what_is_no_interval_is_no_part(tmp_path, value):
    logged = _read(tmp_path, _line(value))
    assert logged.parts == [] and logged.phases == []


def test_names_are_plain_and_bounded_in_number(tmp_path):
    value = {"start": _UPTIME_NS, "duration": 0}
    assert _read(tmp_path, _line(value, key="\x1b[2J"), _line(value, key="x" * 65)).parts == []
    many = _read(tmp_path, *(_line(value, key=f"part_{number}") for number in range(1001)))
    assert len(many.parts) == 1000


def test_parts_lie_beside_phases(tmp_path):
    begin, end = _line(None, "checkpoint", "INTERVAL_START"), _line(None, "checkpoint")
    logged = _read(tmp_path, begin, _line({"start": _UPTIME_NS, "duration": 3}, "persist"), end)
    assert [row["phase"] for row in logged.phases] == ["checkpoint"] and [part["name"] for part in logged.parts] == ["persist"]


def _jumps_line(value):
    return _line(value, key="virtual_clock_jumps", event="POINT_IN_TIME")


def test_jumps_of_a_virtual_clock_are_read_from_all_lines(tmp_path):
    logged = _read(tmp_path, _jumps_line("10,5 20,7"), _jumps_line("30,1"))
    assert logged.jumps == [(10, 5), (20, 7), (30, 1)] and logged.torn == 0


@pytest.mark.parametrize("value", ["10,5 20", "10,-5", "10,0", "-1,5", "a,b", 7, None, f"1,{1 << 63}", "1,2,3"])
def test_damaged_jumps_count_as_torn(tmp_path, value):
    logged = _read(tmp_path, _jumps_line(value))
    assert logged.jumps == [] and logged.torn == 1


def test_jumps_that_sum_up_to_centuries_are_left_out(tmp_path):
    logged = _read(tmp_path, _jumps_line(f"1,{1 << 60} 2,{1 << 60} 3,{1 << 60}"))
    assert logged.jumps == [] and logged.torn == 1


@pytest.mark.parametrize(("off_ns", "used"), [(999_999, True), (-3_000_000, True), (2_000_000_000, False)])
def test_a_line_is_placed_by_its_own_monotonic_time(tmp_path, off_ns, used):
    lines = [_line(None, key="epoch", event=f"INTERVAL_{edge}") for edge in ("START", "END")]
    lines = [line.replace('"time_ns"', f'"monotonic_ns": {_UPTIME_NS + off_ns}, "time_ns"') for line in lines]
    (phase,) = _read(tmp_path, *lines).phases
    assert phase["start_ns"] == phase["end_ns"] == _UPTIME_NS + off_ns * used
