"""Turns of a stream without a log, from reads made by hand: the time of a step, files read side by side, threads that read."""

import numpy as np
import pandas as pd
import pytest

from iotwin.benchmark.fit.streams.turns import in_turn, reading_threads, step_period_ns, without_saving

MS = 1_000_000
BUFFER = 262_144


def bursts(times_ms: list[float], files: int, offset_of=lambda burst, file: burst) -> tuple[pd.DataFrame, np.ndarray]:
    """A read of each file at each time, 0.1 ms apart, of the buffer that `offset_of` says; the first are the first reads."""
    rows = [
        (int(time * MS) + file * MS // 10, BUFFER * offset_of(burst, file), BUFFER, burst)
        for burst, time in enumerate(times_ms)
        for file in range(files)
    ]
    frame = pd.DataFrame(rows, columns=["start_ns", "offset", "result", "burst"])
    return frame, frame.pop("burst").to_numpy()


def test_a_step_is_the_longest_time_of_which_gaps_are_multiples():
    """Gaps of 11, 10 and 1 steps of 40 ms, each 1 % off by chance."""
    rng = np.random.default_rng(3)
    gaps = 40 * np.array([11, 10, 1, 11, 11, 10, 1, 1, 11, 10, 11, 11]) + rng.normal(0, 0.4, 12)
    found = step_period_ns((np.cumsum(gaps) * MS).astype(np.int64))
    assert found == pytest.approx(40 * MS, rel=0.01)


def test_a_gap_is_a_step_at_least():
    """One step of 40 ms between reads, and ten, are no steps of 400 ms, from which 40 ms is but a tenth off."""
    rng = np.random.default_rng(3)
    gaps = 40 * np.array([10, 10, 1, 11, 10, 10, 1, 10, 11, 10, 10, 1] * 3) + rng.normal(0, 1.0, 36)
    found = step_period_ns((np.cumsum(gaps) * MS).astype(np.int64))
    assert found == pytest.approx(40 * MS, rel=0.02)


def test_time_spent_on_saving_is_none_between_reads():
    """Saved from 20 to 25 and from 40 to 60: before, amid and after these."""
    times = np.array([10, 20, 23, 25, 30, 50, 60, 80])
    assert without_saving(times, [(20, 25), (40, 60)]).tolist() == [10, 20, 20, 20, 25, 35, 35, 55]
    assert without_saving(times, []).tolist() == times.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_times_of_chance_have_no_step(seed):
    assert step_period_ns(np.cumsum(np.random.default_rng(seed).exponential(100 * MS, 60)).astype(np.int64)) is None


def test_few_gaps_and_reads_of_one_burst_tell_no_step():
    assert step_period_ns(np.arange(8) * 40 * MS) is None
    assert step_period_ns(np.arange(9) * 40 * MS) == pytest.approx(40 * MS, rel=0.01)
    assert step_period_ns(np.arange(60) * (MS - 1)) is None


def test_files_read_side_by_side_give_records_in_turn():
    reads, group = bursts([0, 400, 850, 1250, 1700], 4)
    assert in_turn(reads, group, 4)
    assert not in_turn(reads, group, 1)  # one file takes no turns
    assert not in_turn(reads[group < 2], group[group < 2], 4)  # one later burst is chance


def test_files_read_at_places_of_their_own_do_not():
    reads, group = bursts([0, 400, 850, 1250, 1700], 4, lambda burst, file: burst * (1 + file % 2))
    assert not in_turn(reads, group, 4)


def test_reads_of_all_times_do_not_even_at_one_place():
    reads, group = bursts([0, 400, 850, 1250, 1700], 4)
    rng = np.random.default_rng(1)
    later = np.sort(rng.uniform(400 * MS, 2000 * MS, int((group > 0).sum()))).astype(np.int64)
    reads.loc[group > 0, "start_ns"] = later
    assert not in_turn(reads, group, 4)


def test_threads_that_only_open_are_none_that_read():
    """Eight threads open; two of them go on to read, and of a hundred reads one is another's."""
    opened = pd.DataFrame({"tid": range(8), "offset": 0.0})
    later = pd.DataFrame({"tid": [1, 2] * 49 + [1, 5], "offset": 9.0})
    assert reading_threads(pd.concat([opened, later])) == 2
    assert reading_threads(pd.concat([opened, pd.DataFrame({"tid": range(8), "offset": 9.0})])) == 8
    assert reading_threads(opened) == 0
