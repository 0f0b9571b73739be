"""The virtual clock, compared with a naive discrete-event simulation of the same threads."""

import heapq
import os
import signal
import threading
import time
from collections import Counter

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from iotwin.benchmark.emulator.virtual_clock import VirtualClock

Step = tuple[str, int]  # (sleep, seconds), (post, channel), (wait, channel), (meet, 0) or (call, tenths of a millisecond)
_MEETING, _CHANNEL = 1 << 60, 1 << 50
_STEPS = st.one_of(
    st.tuples(st.just("sleep"), st.integers(1, 1000)),
    st.tuples(st.sampled_from(("post", "wait")), st.integers(0, 2)),
    st.just(("meet", 0)),
    st.tuples(st.just("call"), st.integers(1, 5)),
)


def simulated(scripts: list[list[Step]]) -> list[tuple[int, int, int]] | None:
    """Return (time in s, thread, step) of the end of each step in order, simulated; None if threads wait for ever."""
    ready = [(0, thread) for thread in range(len(scripts))]
    at, done, posts, waiting, met = [0] * len(scripts), [], Counter[int](), dict[int, list[int]](), list[int]()
    while ready:
        now, thread = heapq.heappop(ready)
        if at[thread] == len(scripts[thread]):
            continue
        kind, value = scripts[thread][at[thread]]
        if kind == "wait" and not posts[value]:
            waiting.setdefault(value, []).append(thread)
            continue
        if kind == "meet":
            met.append(thread)
            if len(met) < len(scripts):
                continue
            for other in met:
                done.append((now, other, at[other]))
                at[other] += 1
                heapq.heappush(ready, (now, other))
            met = []
            continue
        if kind == "sleep":
            now += value
        elif kind == "wait":
            posts[value] -= 1
        elif kind == "post":
            posts[value] += 1
            for other in waiting.pop(value, []):
                heapq.heappush(ready, (now, other))
        done.append((now, thread, at[thread]))
        at[thread] += 1
        heapq.heappush(ready, (now, thread))
    return sorted(done) if at == [len(script) for script in scripts] else None


class Threads:
    """Runs scripts as threads on a virtual clock, and records when each step ended."""

    def __init__(self, scripts: list[list[Step]]) -> None:
        self.clock, self.scripts = VirtualClock(len(scripts)), scripts
        self.posts, self.arrived, self.ended = Counter[int](), 0, list[tuple[float, int, int]]()
        self.jumps_in_calls = 0
        self.begin_ns = self.clock.now_ns()

    def run(self) -> list[tuple[float, int, int]]:
        threads = [threading.Thread(target=self._thread, args=(number,)) for number in range(len(self.scripts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.ended

    def _thread(self, number: int) -> None:
        meetings = 0
        for index, (kind, value) in enumerate(self.scripts[number]):
            meetings += kind == "meet"
            self._step(number, kind, value, meetings)
            self.ended.append(((self.clock.now_ns() - self.begin_ns) / 1e9, number, index))
        self.clock.end(number)

    def _step(self, number: int, kind: str, value: int, meetings: int) -> None:
        if kind == "sleep":
            self.clock.sleep(number, value)
        elif kind == "call":
            before = self.clock.figures()
            time.sleep(value * 1e-4)
            self.jumps_in_calls += self.clock.figures() != before
        elif kind == "wait":
            self.clock.wait(number, _CHANNEL + value, lambda: self._take(value))
        else:
            with self.clock.locked():
                self.posts[value] += kind == "post"
                self.arrived += kind == "meet"
                self.clock.wake(_MEETING if kind == "meet" else _CHANNEL + value)
            if kind == "meet":
                self.clock.wait(number, _MEETING, lambda: self.arrived >= meetings * len(self.scripts))

    def _take(self, channel: int) -> bool:
        if not self.posts[channel]:
            return False
        self.posts[channel] -= 1
        return True


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(st.lists(_STEPS, max_size=7), min_size=1, max_size=4))
def test_threads_sleep_and_wait_as_in_a_simulation(scripts: list[list[Step]]) -> None:
    """Steps end no sooner than simulated, and in the simulated order, if the order does not depend on a race.

    The clock does not jump while a thread is in a call.
    """
    expected = simulated(scripts)
    assume(expected is not None)
    takers = Counter(kind_and_channel for script in scripts for kind_and_channel in set(script) if kind_and_channel[0] == "wait")
    assume(all(count == 1 for count in takers.values()))  # who takes a post of two at once is a race
    assert expected is not None
    due = {(thread, step): now for now, thread, step in expected}
    threads = Threads(scripts)
    found = threads.run()
    assert len(found) == len(expected)
    assert all(now >= due[thread, step] for now, thread, step in found)
    assert threads.jumps_in_calls == 0
    # The clock never skips more than the simulated time: threads that were late sleep until later, in real time that has passed.
    assert threads.clock.figures().skipped_s <= max(due.values(), default=0)
    order = [due[thread, step] for _, thread, step in sorted(found)]
    assert order == sorted(order)


def test_a_thread_that_works_holds_the_clock() -> None:
    """Time that a thread spends outside of waits is not skipped: a sleeper that is due meanwhile wakes by real time."""
    clock = VirtualClock(2)
    sleeper = threading.Thread(target=clock.sleep, args=(1, 0.05))
    sleeper.start()
    sleeper.join()
    assert clock.figures() == (0, 0)
    clock.end(0)
    clock.sleep(1, 3600)
    assert clock.figures().jumps == 1 and clock.jumps()[0, 1] == round(clock.figures().skipped_s * 1e9)


def test_a_killed_process_does_not_stop_the_clock() -> None:
    clock = VirtualClock(2)
    pid = os.fork()
    if not pid:
        clock.enter(1)
        time.sleep(600)
        os._exit(0)
    while not clock._slots[1, 3]:
        time.sleep(0.001)
    assert clock.end_dead() == 0
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert clock.end_dead() == 1 and clock.has_ended(1)
    clock.sleep(0, 3600)
    assert clock.figures().jumps == 1
    os.waitpid(pid, 0)


def test_a_process_that_ends_while_the_dead_are_searched_was_not_killed(monkeypatch):
    clock = VirtualClock(2)
    for slot in range(2):
        clock.enter(slot)

    def is_dead(process: int) -> bool:
        clock.end(0)  # the process ends its first thread, and is killed in the second one
        return True

    monkeypatch.setattr("iotwin.benchmark.emulator.virtual_clock._is_dead", is_dead)
    assert clock.end_dead() == 1 and clock.has_ended(0) and clock.has_ended(1)
