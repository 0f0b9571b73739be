"""The end of a container that runs: its cgroup goes first, and the engine tells the status a moment later, if it lives."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from iotwin.tracing_tools.targets import container, out_of_memory
from iotwin.tracing_tools.targets.container import ContainerTarget


class Clock:
    """A clock of the test's own."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(container, "time", made)
    return made


def target(cgroup: Path, **state: object) -> ContainerTarget:
    made = ContainerTarget.__new__(ContainerTarget)
    fields = {"exit_status": None, "_gone_since": None, "_cgroup": SimpleNamespace(path=cgroup), **state}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def watch(status: int | None, may_report: bool) -> SimpleNamespace:
    return SimpleNamespace(exit_status=status, may_report_status=lambda: may_report)


def test_an_engine_that_is_slow_to_tell_the_status_is_waited_for(tmp_path, clock):
    ending = target(tmp_path / "gone", _watch=watch(None, True))
    assert not ending.has_ended()
    clock.now_s += 50
    assert not ending.has_ended()
    ending._watch.exit_status = 128 + signal.SIGKILL
    assert ending.has_ended() and ending.exit_status == -signal.SIGKILL


def test_an_engine_that_is_stuck_or_went_away_is_not(tmp_path, clock):
    stuck = target(tmp_path / "gone", _watch=watch(None, True))
    assert not stuck.has_ended()
    clock.now_s += 61
    assert stuck.has_ended() and stuck.exit_status is None
    assert target(tmp_path / "gone", _watch=watch(None, False)).has_ended()
    assert not target(tmp_path, _watch=watch(None, False)).has_ended()  # its cgroup is there


@pytest.mark.parametrize(
    ("log", "limit", "after_s", "told"),
    [
        (None, 16 << 20, 10, True), (None, 0, 10, False), (None, 0, 0.5, True),
        ("oom-kill: other", 16 << 20, 10, False), ("oom-kill: other", 16 << 20, 0.5, True), ("oom-kill: abc1", 0, 60, True),
    ],
)  # fmt: skip
def test_that_memory_ran_out_may_be_learned_late_where_it_is_limited(clock, tmp_path, monkeypatch, log, limit, after_s, told):
    """`log`: the kernel's log, None if it cannot be read. `after_s`: when the engine learns of it."""
    monkeypatch.setattr(out_of_memory, "KERNEL_LOG", str(tmp_path / "log"))
    if log:
        (tmp_path / "log").write_text(log)
    begun, state = clock.now_s, {"OOMKilled": False}
    attributes = {"State": state, "HostConfig": {"Memory": limit}}
    engine = SimpleNamespace(id="abc1", attrs=attributes, reload=lambda: state.update(OOMKilled=clock.now_s >= begun + after_s))
    killed = target(Path("/"), _container=engine, exit_status=-signal.SIGKILL)
    assert killed._was_out_of_memory() is told
