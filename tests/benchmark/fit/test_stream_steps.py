"""What the reads of a stream say of its steps: its bursts, the bytes used up, the open files and the time of steps, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.streams.stream import (
    Stream,
    _bursts,
    _done_by,
    _epochs_of_opens,
    _file_ends,
    _most_open,
    _record_bytes,
    _step_times,
    _unlogged_steps,
    _Used,
    logged_steps,
    within,
)
from iotwin.benchmark.fit.windows import Window

SECOND = 10**9


def window(start_s: float, end_s: float, phase: str = "block") -> Window:
    return Window(phase, 1, int(start_s * SECOND), int(end_s * SECOND), True)


def stream(*windows: Window) -> Stream:
    nothing: Any = pd.DataFrame()
    return Stream(1, "/data", ["a"], np.array([1]), nothing, nothing, list(windows), [])


def reads(*rows: tuple[float, float, int, int]) -> pd.DataFrame:
    """Reads of (start_s, end_s, offset, result)."""
    frame = pd.DataFrame(rows, columns=["start_ns", "end_ns", "offset", "result"])
    return frame.assign(start_ns=(frame["start_ns"] * SECOND).astype(int), end_ns=(frame["end_ns"] * SECOND).astype(int))


def test_the_dense_first_reads_are_one_burst_and_pauses_part_the_others():
    """Twenty reads a millisecond apart; then pairs of reads, the pairs a second apart."""
    first = np.arange(20) * 10**6
    later = SECOND + np.array([0, 1, 1000, 1001, 2000, 2001]) * 10**6
    found = _bursts(np.concatenate([first, later]), 4 * SECOND)
    assert found.tolist() == [0] * 20 + [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_burst_ends_where_two_constant_rates_are_likeliest(seed):
    """Against the likelihood of two Poisson processes, written out for every place to part them."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum(np.concatenate([rng.integers(1, 10**6, 30), rng.integers(1, 10**8, 12)]))
    end_ns = int(starts[-1]) + 10**8
    likelihood = {}
    for k in range(2, len(starts)):
        at = starts[k - 1]
        rate, other = k / max(at - starts[0], 1), (len(starts) - k) / max(end_ns - at, 1)
        likelihood[k] = k * np.log(rate) + (len(starts) - k) * np.log(other)
    best = max(likelihood, key=lambda k: likelihood[k])
    assert int((_bursts(starts, end_ns) == 0).sum()) == best


@pytest.mark.parametrize("count", [1, 2])
def test_so_few_reads_are_all_first_ones(count):
    assert _bursts(np.arange(count), 100).tolist() == [0] * count


def test_bytes_are_those_of_the_first_reads_of_later_ones_and_all():
    """Two files opened with buffers of 100 bytes: of the first 500, those of files that only wait their turn are not used up."""
    frame = reads((0, 0.1, 0, 100), (0.1, 0.2, 0, 100), (0.2, 0.3, 100, 300), (5, 5.1, 400, 50), (6, 6.1, 450, 60))
    group = np.array([0, 0, 0, 1, 2])
    assert _Used.of(frame, group, 2, 1) == _Used(500 - 100, 110, 610)  # half a buffer of each of two files
    assert _Used.of(frame, group, 1, 4) == _Used(500 - 250, 110, 610)  # and two more files that threads have opened ahead
    assert _Used.of(frame, group, 3, 4).first_bytes == 0


def test_open_files_are_counted_where_most_are():
    opens = pd.DataFrame({"start_ns": [0, 1, 5, 9], "close_ns": [5, 6, 9, 12]})
    assert _most_open(opens) == 2  # at 5 one closes as another opens
    assert _most_open(opens.assign(close_ns=[6, 6, 9, 12])) == 3


@pytest.mark.parametrize(
    ("logged", "ranks", "found"),
    [
        ({"step_count": 30, "global_batch_size": 12}, 3, (30, 4)),
        ({"step_count": 1, "global_batch_size": 1}, 0, (1, 1)),
        ({"step_count": 30, "global_batch_size": 2}, 3, (30, 1)),
        ({"step_count": 0, "global_batch_size": 12}, 1, None),
        ({"step_count": 30, "global_batch_size": 0}, 1, None),
        ({"step_count": 30, "global_batch_size": "12"}, 1, None),
        ({"global_batch_size": 12}, 1, None),
    ],
)
def test_a_rank_takes_its_share_of_the_logged_batch(logged, ranks, found):
    job: Any = SimpleNamespace(logged=logged, processes=pd.DataFrame({"role": ["rank"] * ranks + ["loader"]}))
    assert logged_steps(job) == found


def test_a_first_step_of_its_own_and_the_mean_of_the_others():
    """First reads until 1 s, a step of 6 s, then steps of 1 s: 11 s from the window's start."""
    frame = reads((0, 1, 0, 1), (7, 7.1, 0, 1), (8, 8.1, 0, 1), (9, 9.1, 0, 1))
    first_s, compute_s = _step_times(stream(window(0, 11)), frame, np.arange(4), 6)
    assert first_s == pytest.approx(6) and compute_s == pytest.approx((11 - 1 - 6) / 5)


def test_a_first_step_as_the_others_is_none_of_its_own():
    """The first pause, 2 s, is not three times a later one of 1 s; two windows of 4 steps, 0.5 s before the first."""
    frame = reads((0.2, 0.5, 0, 1), (2.5, 2.6, 0, 1), (3.6, 3.7, 0, 1))
    first_s, compute_s = _step_times(stream(window(0, 4.5), window(5, 9.5)), frame, np.arange(3), 4)
    assert first_s is None and compute_s == pytest.approx((9 - 0.5) / 8)


def test_files_end_where_others_are_opened():
    frame = reads((0, 1, 0, 10), (0.5, 2, 10, 10), (4, 4.5, 20, 10))
    opens = pd.DataFrame({"start_ns": [int(s * SECOND) for s in (0, 0.1, 1.5, 2, 3, 5)]})
    before, later_s = _file_ends(frame, opens, np.array([0, 0, 1]), 2)
    assert before == 2 and later_s.tolist() == [1.0, 3.0]


def test_records_are_what_the_steps_used_up():
    said: list[str] = []
    assert _record_bytes(_Used(400.0, 600, 1200), False, 30, said) == 20
    assert _record_bytes(_Used(400.0, 600, 1200), True, 30, said) == 40
    assert not any("half of" in text for text in said)
    assert _record_bytes(_Used(400.0, 0, 1200), False, 10, said) == 20 and "half of what those brought" in said[-2]


def test_events_are_within_a_window_from_its_first_to_its_last_nanosecond():
    events = pd.DataFrame({"start_ns": [9, 10, 20, 21, 29, 30]})
    windows = [Window("block", 1, 10, 20, True), Window("block", 2, 30, 40, True)]
    assert within(events, windows)["start_ns"].tolist() == [10, 20, 30]


def opened_at(*turns: tuple[float, ...]) -> pd.DataFrame:
    """Opens of one file after the other, in each turn at these seconds."""
    rows = [(int(second * SECOND), file) for turn in turns for file, second in enumerate(turn)]
    return pd.DataFrame(rows, columns=["start_ns", "file"])


def test_an_epoch_opens_every_file_anew_and_ends_before_what_is_saved_after_its_last_read():
    """Three files each epoch; of what is saved, 1.5 s is amid the reads of the first one, 4 s is after its last read at 3 s."""
    frame = reads((0, 1, 0, 10), (3, 3.1, 10, 10), (5, 6, 0, 10), (7, 7.1, 10, 10))
    saved_ns = [int(second * SECOND) for second in (1.5, 4, 8)]
    windows = _epochs_of_opens(opened_at((0, 1, 2), (5, 6, 6.5)), frame, saved_ns, 10 * SECOND)
    assert windows == [Window("epoch", 1, 0, 4 * SECOND - 1, False), Window("epoch", 2, 5 * SECOND, 8 * SECOND - 1, False)]
    unsaved = _epochs_of_opens(opened_at((0, 1, 2), (5, 6, 6.5)), frame, [], 10 * SECOND)
    assert [window.end_ns for window in unsaved] == [5 * SECOND - 1, 10 * SECOND]


@pytest.mark.parametrize(
    "turns",
    [((0, 1, 2),), ((0, 1, 2), (5, 6)), ((0, 1, 6), (5, 7, 8))],
    ids=["once", "not all again", "again before all are open"],
)
def test_files_opened_otherwise_are_no_epochs(turns):
    assert _epochs_of_opens(opened_at(*turns), reads((0, 1, 0, 10)), [], 10 * SECOND) == []


def test_steps_without_a_log_last_as_long_as_gaps_between_reads_are_multiples_of():
    """First reads until 1 s; later ones 0.3, 0.4, 0.3, ... s apart, so steps of 0.1 s, in a window of 6 s from there.

    Amid the third, fifth and eighth gap 0.15 s are spent on saving, which makes these 0.45, 0.45 and 0.55 s long.
    """
    gaps, saves = np.array([0.3, 0.4] * 5), [2, 4, 7]
    later = 1 + np.cumsum(gaps + 0.15 * np.isin(np.arange(10), saves))
    saved = [(int((later[gap] - 0.2) * SECOND), int((later[gap] - 0.05) * SECOND)) for gap in saves]
    frame = reads((0, 1, 0, 1), *((second, second + 0.01, 0, 1) for second in later))
    said: list[str] = []
    steps, batch, step_s = _unlogged_steps(stream(window(0.5, 7.45)), frame, np.arange(11), saved, 4, said)
    assert (steps, batch) == (60, 4) and step_s == pytest.approx(0.1, rel=0.01)
    assert "steps of 100.0 ms" in said[0]


def test_steps_without_a_log_are_bursts_where_no_time_fits():
    frame = reads((0, 1, 0, 1), (2, 2.1, 0, 1), (2.7, 2.8, 0, 1))
    assert _unlogged_steps(stream(window(0.5, 7)), frame, np.arange(3), [], 4, []) == (2, 4, None)


@pytest.mark.parametrize(
    ("second", "logged", "found"),
    [(-1, False, (0, 0)), (2.5, False, (1, 25)), (10.5, False, (1, 100)), (14, False, (1, 130)), (21, False, (2, 200)),
     (2.5, True, (1, 100)), (14, True, (1, 100)), (21, True, (2, 200))],
)  # fmt: skip
def test_steps_are_done_evenly_within_a_window_that_was_not_logged(second, logged, found):
    """Two windows of 100 steps, 0 to 10 and 11 to 21 s."""
    windows = [Window("epoch", n + 1, int(at * SECOND), int((at + 10) * SECOND), logged) for n, at in enumerate((0, 11))]
    assert _done_by(int(second * SECOND), windows, 100) == found
