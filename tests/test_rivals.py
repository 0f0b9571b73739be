"""A rival that did not trace has no time in `make perf`, and its row says why."""

import shutil

import pytest

from tests.conftest import ROOT, compile_c
from tests.perf.rivals import NotMeasuredError, Traced, nanoseconds_a_call, own_ns, under_bpftrace, under_strace

_PREADS = 50


@pytest.fixture
def command(tmp_path):
    program = compile_c(tmp_path / "preads", ROOT / "tests" / "perf" / "preads.c", options=["-O2"])
    data = tmp_path / "cached"
    data.write_bytes(bytes(1 << 18))
    return [str(program), str(data), "4096", str(_PREADS)]


@pytest.mark.parametrize(("seen", "told"), [(0, "saw 0 of 1074"), (1073, "saw 1073 of 1074"), (1075, "saw 1075 of 1074")])
def test_a_rival_that_saw_other_calls_than_were_made_has_no_time(seen, told):
    with pytest.raises(NotMeasuredError, match=rf"{told} calls; its last line: Lost 3 events"):
        nanoseconds_a_call(lambda: Traced(1e6, seen, "Lost 3 events"), _PREADS)
    assert nanoseconds_a_call(lambda: Traced(1e6, 1074), _PREADS) == 1e6 / _PREADS


def test_strace_is_held_against_the_program(command, tmp_path):
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    assert nanoseconds_a_call(under_strace(command, tmp_path), _PREADS) > 0


@pytest.mark.root
def test_a_script_that_cannot_attach_says_so(command, tmp_path):
    if shutil.which("bpftrace") is None:
        pytest.skip("bpftrace is not installed")
    run = under_bpftrace(command, tmp_path, script="tracepoint:no:such { }")
    with pytest.raises(NotMeasuredError, match="it did not trace: "):
        nanoseconds_a_call(run, _PREADS)


def test_a_tracer_that_fails_is_told_by_its_last_line():
    with pytest.raises(NotMeasuredError, match="it ended with 3: no leave"):
        own_ns(["sh", "-c", "echo first >&2; echo no leave >&2; exit 3"])
