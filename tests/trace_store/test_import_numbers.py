"""Numbers in other tools' files are taken as far as the trace's columns hold them, and no further."""

import pytest

from iotwin.trace_store.importers import artifact_samples, strace
from iotwin.trace_store.importers.artifact_calls import _number, transfer_line
from iotwin.trace_store.importers.chrome import Event, _as_int32, _integer, is_possible

MOST = 1 << 62


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("0x10", 16),
        ("-5", -5),
        (str((1 << 63) - 1), (1 << 63) - 1),
        (str(1 << 63), -(1 << 63)),
        (str((1 << 64) - 2), -2),
        (str(-(1 << 63)), -(1 << 63)),
    ],
)
def test_the_artifact_prints_errors_as_unsigned_numbers(text, value):
    assert _number(text) == value


@pytest.mark.parametrize("text", [str(1 << 64), str(-(1 << 63) - 1), "1_000", "x", "0x", ""])
def test_what_is_no_number_of_64_bits_is_none(text):
    with pytest.raises(ValueError, match=r".*"):
        _number(text)


def test_a_line_of_a_thread_of_31_bits_is_whole():
    assert transfer_line(f"9 {(1 << 31) - 1} 0 4096 5 a") == (9, (1 << 31) - 1, 0, 4096, 5, "a")
    assert transfer_line(f"9 {1 << 31} 0 4096 5 a") is None


@pytest.mark.parametrize(
    ("value", "number"), [(MOST, MOST), (MOST + 1, None), (-MOST, -MOST), (-MOST - 1, None), ("7", 7), (2.9, 2), (None, None)]
)
def test_a_number_that_its_column_cannot_hold_is_missing(value, number):
    assert _integer(value) == number and _integer(value, 3) == (3 if number is None else number)
    assert _integer(8, None, 8) == 8 and _integer(9, None, 8) is None


@pytest.mark.parametrize(
    ("number", "read"), [(0, 0), ((1 << 31) - 1, (1 << 31) - 1), (1 << 31, -(1 << 31)), ((1 << 32) + 5, 5), (-1, -1)]
)
def test_threads_are_the_lowest_32_bits_of_their_number(number, read):
    assert _as_int32(number) == read


def test_times_may_be_half_of_what_a_column_holds():
    """In microseconds, so that a start and a duration can be added up."""
    most = MOST / 2 / 1000
    assert is_possible(Event(ph="X", ts=most, dur=most)) and is_possible(Event(ph="X", ts=-most, dur=0.0))
    assert not is_possible(Event(ph="X", ts=most * 1.001, dur=0.0)) and not is_possible(Event(ph="X", ts=0.0, dur=most * 1.001))


@pytest.mark.parametrize(
    ("said", "rate"), [(0, 0), (12.5, 12.5), (999_999_999, 999_999_999), (10**9, 0), (-0.5, 0), ("7", 0), (None, 0)]
)
def test_rates_that_no_disk_has_count_as_none(said, rate):
    assert artifact_samples._rate(said) == rate


@pytest.mark.parametrize(
    ("lines", "best", "uncertainty_ns"),
    [
        ([(10, "23:59:58"), (20, "23:59:59"), (26, "0:00:00")], (23, 86_400), 3),
        ([(10, "1:00:00"), (20, "1:00:00"), (40, "1:00:01")], (30, 3601), 10),
        ([(10, "1:00:00"), (20, "1:00:01"), (30, "1:00:02")], (15, 3601), 5),
    ],
    ids=["midnight", "the same second twice", "of two as near the first"],
)
def test_the_local_clock_is_that_of_the_nearest_change_of_a_second(tmp_path, lines, best, uncertainty_ns):
    (tmp_path / "clock").write_text("".join(f"{time_ns} {second}\n" for time_ns, second in lines))
    assert artifact_samples.read_local_clock(tmp_path / "clock") == (artifact_samples.LocalClock(*best, uncertainty_ns), 0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"pid": (1 << 31) - 1, "exit_ns": MOST}, True),
        ({"pid": 1 << 31}, False),
        ({"pid": 1, "exit_ns": MOST + 1}, False),
        ({"pid": 1, "start_ns": -MOST, "exit_status": None}, True),
        ({"pid": 1, "start_ns": -MOST - 1}, False),
        ({"pid": 1, "exit_status": -(1 << 31)}, False),
        ({"pid": 1, "ppid": 1 << 31}, False),
    ],
)
def test_a_process_of_strace_has_numbers_that_the_columns_hold(row, expected):
    assert strace._is_process(row) is expected
