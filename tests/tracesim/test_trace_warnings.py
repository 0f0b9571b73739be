"""What makes a comparison less sure is said: losses, a crowded machine, recoveries, other probes, backends and clocks."""

from dataclasses import replace

import pandas as pd
import pytest

from iotwin.trace_store.manifest import read_manifest, write_manifest
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.verdict.caveats import caveats_of
from iotwin.tracesim.verdict.losses import lost_share
from iotwin.tracesim.verdict.trace_warnings import common_groups, misplaced, warnings_about
from tests.synthetic import Job, write_job


class WithSamples(Trace):
    """A trace whose samples of the processors are made up."""

    cpu: pd.DataFrame | None = None

    def samples(self, kind):
        return self.cpu


def made(path, cpu=None, **changes) -> WithSamples:
    """A trace of a machine of 8 CPUs; `changes` are of its manifest, `cpu` rows of (user, system, idle, iowait, job_cpus)."""
    write_job(path, Job(files=4, epochs=1))
    manifest = read_manifest(path)
    manifest.host.cpus = 8
    for name, value in changes.items():
        setattr(manifest, name, value)
    write_manifest(path, manifest)
    trace = WithSamples(path)
    if cpu is not None:
        trace.cpu = pd.DataFrame(cpu, columns=["user", "system", "idle", "iowait", "job_cpus"])
    return trace


def said(*traces, without_phases=()) -> list[str]:
    names = [f"t{i}" for i in range(len(traces))]
    caveats = [caveat for trace, name in zip(traces, names, strict=True) for caveat in caveats_of(trace, name)]
    return caveats + warnings_about(traces, names, without_phases)


def test_nothing_is_said_of_sound_traces(tmp_path):
    assert said(made(tmp_path / "a"), made(tmp_path / "b")) == []


def test_what_was_lost_is_a_share_of_what_there_was(tmp_path):
    events = made(tmp_path / "c").manifest.events
    trace = made(tmp_path / "a", lost={"ring": events - 2, "recorder": 2})
    assert lost_share(trace) == 0.5 and said(trace) == [f"t0 lost {events} events (50 % of all)"]
    assert lost_share(made(tmp_path / "b")) == 0.0


@pytest.mark.parametrize(
    ("rows", "crowded"),
    [
        ([(0.5, 0.3, 0.05, 0.04, 3.4)], "3.0"),  # 0.8 * 8 - 3.4 by others; 9 % idle
        ([(0.5, 0.3, 0.05, 0.05, 3.4)], None),  # a tenth is idle
        ([(0.5, 0.3, 0.04, 0.05, 4.5)], None),  # others take less than a quarter
        ([(0.5, 0.3, 0.04, 0.05, 4.4)], "2.0"),  # just a quarter of 8
        ([(0.5, 0.3, 0.0, 0.0, 2.4), (0.5, 0.3, 0.16, 0.0, 4.4)], "3.0"),  # the mean counts
        ([(0.5, 0.3, 0.0, 0.0, float("nan"))], None),  # what the job took is not known
    ],
)
def test_a_crowded_machine(tmp_path, rows, crowded):
    found = said(made(tmp_path / "a", cpu=rows))
    sentence = f"t0's machine was crowded (other work took {crowded} of 8 CPUs), which its times show"
    assert found == ([sentence] if crowded else [])


def test_what_the_traces_are_is_told_apart(tmp_path):
    sound = made(tmp_path / "a")
    found = said(sound, made(tmp_path / "b", status="recovered", backend="strace"), without_phases=["t1"])
    assert found == [
        "t1 was recovered from a recording that was cut off; its end may be missing",
        "captured by different backends (t0 synthetic, t1 strace)",
        "t1 did not log phases; the runs are compared as one phase each",
    ]


def test_calls_that_one_trace_did_not_capture_are_left_out(tmp_path):
    all_of_them = made(tmp_path / "a")
    few = made(tmp_path / "b", probes=["tracepoint:syscalls:sys_enter_read", "openat", "no_such_call"])
    assert common_groups([all_of_them, few]) == {"read", "open"} and common_groups([all_of_them]) > {"read", "open", "write"}
    (sentence,) = said(all_of_them, few)
    assert sentence.startswith("not every trace captured ") and "write" in sentence and "read" not in sentence.split("calls")[0]


def test_clocks_that_do_not_meet(tmp_path):
    from iotwin.tracesim.profile import profiles_of

    trace = made(tmp_path / "a")
    (profile,) = profiles_of([trace], True, frozenset(("read", "open")), map, lambda _: None)
    assert misplaced([profile], ["t0"]) == []
    none = profile.each.calls.copy()
    none[profile.occurrences.phase != 0] = 0
    elsewhere = replace(profile, each=replace(profile.each, calls=none))
    assert misplaced([profile, elsewhere], ["t0", "t1"]) == [
        "t1 has no call on its files in any phase; its log and its events may use different clocks"
    ]
