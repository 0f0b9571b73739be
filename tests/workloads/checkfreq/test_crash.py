"""iotwin checkfreq crash: kills lose nothing, what loses something is seen, and unsafe ways are shown to."""

import json

import pytest

from iotwin.workloads.checkfreq import crash
from tests.conftest import run_iotwin
from tests.processes import call, one_line

pytestmark = pytest.mark.torch


def test_kills_lose_nothing_and_unsafe_ways_do(tmp_path):
    done = run_iotwin(
        "checkfreq", "crash", "-o", tmp_path, "--kills", "12", "--seed", "3", "--unsafe", "overwrite,no-fsync", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == 12 == sum(found["points"].values()) and found["lost"] == 0
    assert found["most_steps_lost"] <= found["bound_steps"] == 2 * crash.INTERVAL - 1
    assert found["loadable"] >= 6 and len(found["points"]) >= 2
    for way in ("overwrite", "no-fsync"):
        assert 0 < found["unsafe"][way]["unloadable"] <= found["unsafe"][way]["states"]
    assert "is there already" in one_line(call("checkfreq", "crash", "-o", tmp_path, "--kills", "1"))


def test_what_is_lost_is_seen(tmp_path, monkeypatch):
    restored = iter([6, 3, None, 9, -1])
    monkeypatch.setattr(
        crash,
        "_one_kill",
        lambda store, call, behind, shared: shared.__setitem__(slice(None), crash._COUNTER.pack(10)) or "write",
    )
    monkeypatch.setattr(crash, "_restored", lambda store: next(restored))
    found = crash.crash(tmp_path, 5, 1, ())
    assert found["lost"] == 3 and found["loadable"] == 4 and found["most_steps_lost"] == 11


def test_impossible_requests_are_one_line(tmp_path):
    assert "--kills: must be at least 1 (got 0)" in one_line(call("checkfreq", "crash", "-o", tmp_path, "--kills", "0"))
    assert "--unsafe 'hope' is unknown; known: overwrite, no-fsync" in one_line(
        call("checkfreq", "crash", "-o", tmp_path, "--unsafe", "hope")
    )
