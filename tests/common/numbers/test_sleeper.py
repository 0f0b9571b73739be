"""Sleeps add up although each may overshoot; the clock is made up, so that no test depends on the machine's load."""

import time

import pytest

from iotwin.common.numbers.sleeper import Sleeper

MILLISECOND = 1_000_000


class Clock:
    """A clock that only sleeping moves, each time by `late_ns` too much."""

    def __init__(self, late_ns: int) -> None:
        self.now_ns, self.late_ns = 0, late_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + self.late_ns

    def sleeper(self) -> Sleeper:
        return Sleeper(False, self.monotonic_ns, self.sleep)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    return Clock(request.param)


@pytest.mark.parametrize("clock", [0, MILLISECOND // 10, MILLISECOND], indirect=True)
def test_many_sleeps_last_as_long_as_their_sum(clock: Clock) -> None:
    sleeper = clock.sleeper()
    for _ in range(100):
        sleeper.sleep(0.005)
    assert clock.now_ns == 500 * MILLISECOND + clock.late_ns  # only the last overshoot is left


@pytest.mark.parametrize("clock", [2 * MILLISECOND], indirect=True)
def test_sleeps_shorter_than_the_overshoot_are_made_up_for(clock: Clock) -> None:
    sleeper = clock.sleeper()
    for _ in range(1000):
        sleeper.sleep(0.001)
    assert clock.now_ns <= 1000 * MILLISECOND + clock.late_ns


@pytest.mark.parametrize("clock", [3600 * 1000 * MILLISECOND], indirect=True)
def test_a_paused_machine_does_not_cancel_the_sleeps_after_it(clock: Clock) -> None:
    sleeper = clock.sleeper()
    sleeper.sleep(0.005)
    clock.late_ns, begin_ns = 0, clock.now_ns
    for _ in range(100):
        sleeper.sleep(0.005)
    assert clock.now_ns - begin_ns >= 490 * MILLISECOND


@pytest.mark.parametrize("clock", [0], indirect=True)
def test_what_the_emulator_takes_comes_off_the_next_sleep(clock: Clock) -> None:
    sleeper = clock.sleeper()
    for _ in range(100):
        begin_ns = clock.now_ns
        clock.now_ns += MILLISECOND
        sleeper.sleep(0.005, begin_ns)
    assert clock.now_ns == 500 * MILLISECOND


@pytest.mark.parametrize("clock", [MILLISECOND], indirect=True)
def test_ranks_that_meet_do_not_add_up_the_delays_of_each(clock: Clock) -> None:
    first, second = clock.sleeper(), clock.sleeper()
    for step in range(100):  # one is late in every even step, the other in every odd one; both go on when the later one is there
        begin_ns = clock.now_ns
        ends = []
        for sleeper, late_ns in ((first, step % 2 * MILLISECOND), (second, (step + 1) % 2 * MILLISECOND)):
            clock.now_ns, clock.late_ns = begin_ns, late_ns
            sleeper.sleep(0.005)
            ends.append((clock.now_ns, sleeper.due_ns()))
        clock.now_ns = max(now_ns for now_ns, _ in ends)
        for sleeper in (first, second):
            sleeper.set_due(max(due_ns for _, due_ns in ends))
    assert clock.now_ns == 501 * MILLISECOND


@pytest.mark.parametrize("clock", [0], indirect=True)
def test_a_delay_lasts_until_there_is_a_sleep_that_it_shortens(clock: Clock) -> None:
    sleeper = clock.sleeper()
    clock.now_ns = 3 * MILLISECOND
    sleeper.sleep(0, MILLISECOND)
    assert sleeper.set_ns == 3 * MILLISECOND
    sleeper.sleep(0.005)
    assert (clock.now_ns, sleeper.shortened_ns) == (6 * MILLISECOND, 2 * MILLISECOND)


@pytest.mark.parametrize("clock", [MILLISECOND], indirect=True)
def test_no_time_is_no_sleep(clock: Clock) -> None:
    clock.sleeper().sleep(0)
    clock.sleeper().sleep(-5)
    assert clock.now_ns == 0


def test_real_sleeps_are_never_shorter_in_sum() -> None:
    sleeper, begin = Sleeper(), time.monotonic()
    for _ in range(20):
        sleeper.sleep(0.002)
    assert time.monotonic() - begin >= 0.04


@pytest.mark.parametrize(("longest_ms", "next_ms"), [(10, 90), (60, 40), (200, 0)])
def test_only_so_much_comes_off_the_next_sleep_and_is_counted(longest_ms: int, next_ms: int) -> None:
    clock = Clock(0)
    sleeper = Sleeper(False, clock.monotonic_ns, clock.sleep, longest_ms * MILLISECOND)
    sleeper.sleep(0.1, -300 * MILLISECOND)
    assert (clock.now_ns, sleeper.shortened_ns) == (next_ms * MILLISECOND, (100 - next_ms) * MILLISECOND)
