"""Reruns and resumed runs are compared step by step; runs that lack a part of their state are caught, and the part is named."""

import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError, UsageError
from iotwin.workloads.detrain.discover import discover
from iotwin.workloads.detrain.instrumentation import write_instrumentation
from iotwin.workloads.detrain.randomness.determinism import environment
from iotwin.workloads.detrain.verify.compared_steps import LoggedStep, StepDifference, first_difference, read_steps
from iotwin.workloads.detrain.verify.needed_state import needed, parts_of
from iotwin.workloads.detrain.verify.observed_run import RunRequest
from iotwin.workloads.detrain.verify.script_runs import ScriptRuns
from iotwin.workloads.detrain.verify.verification import VerifiedScript, Verifier, resume_points
from iotwin.workloads.detrain.verify.verified_document import needed_state, relative_spread

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("verified_script.py")
POINTS = [(epoch, batch) for epoch in range(2) for batch in range(4)]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """Yield a verifier that has run the script and saved two checkpoints."""
    output = tmp_path_factory.mktemp("output")
    write_instrumentation(output / "inst.json", discover(SCRIPT))
    verified = VerifiedScript(SCRIPT, ["its", "arguments"], output, output / "inst.json", "strict", 5)
    with ScriptRuns(environment("strict", 5)) as server:
        verifier = Verifier(verified, server)
        assert [(step.epoch, step.batch) for step in verifier.run_reference()] == POINTS
        assert (output / "runs" / "reference.txt").read_text() == "the end of its arguments\n"
        assert verifier.save_at([(1, 1)]) == {"equal": True, "workers": None, "first_difference": None, "error": None}
        yield verifier


def test_a_resumed_run_is_equal(verifier):
    found = verifier.resume((1, 1))
    expected = {"epoch": 1, "batch": 1, "replay": "restore", "workers": None, "equal": True, "first_difference": None}
    assert found == {**expected, "differs_from_saved": [], "error": None}


def test_a_resumed_run_without_a_part_of_its_state_is_caught(verifier):
    found = verifier.resume((1, 1), ["main().optimizer"])
    expected = StepDifference(5, "optimizer", "main().optimizer.state.0.momentum_buffer")
    assert not found["equal"] and found["error"] is None and found["first_difference"] == expected


@pytest.mark.parametrize(
    ("drop", "arguments", "expected"),
    [
        ("rng", [], StepDifference(5, "rng", "python")),
        ("loader", [], StepDifference(5, "indices")),
        ("scaler", ["scaled"], StepDifference(5, "optimizer", "main().scaler.scale")),
        ("workers", [], StepDifference(5, "input", "0")),
        ("threads", [], None),
    ],
)
def test_each_negative_control_is_caught_and_named(verifier, tmp_path, monkeypatch, drop, arguments, expected):
    control = verifier
    monkeypatch.setattr(verifier, "_drop", drop)
    if drop in ("scaler", "workers"):  # the reference differs: the scaler is used, or no item is keyed
        script = verifier._script._replace(arguments=arguments or verifier._script.arguments, output=tmp_path)
        control = Verifier(script, verifier._server, drop=drop)
        control.run_reference()
        assert control.save_at([(1, 1)])["equal"]
    found = control.resume((1, 1))
    assert not found["equal"] and found["error"] is None
    if drop == "threads":  # the steps may be equal
        assert [each.partition(":")[0] for each in found["differs_from_saved"]] == ["threads"]
    else:
        assert found["first_difference"] == expected and not found["differs_from_saved"]


def test_the_parts_that_a_resumed_run_needs(verifier):
    parts = parts_of(verifier._script, verifier.saved_in, verifier.checkpoint((1, 1)))
    assert parts[:2] == ["rng", "loader"]
    objects = {"main().model", "main().optimizer", "main().schedule", "main().unused"}
    assert objects <= set(parts)
    assert set(needed_state(verifier._script, verifier, [(1, 1)])) == {"rng", "loader", *objects} - {"main().unused"}


def test_a_point_without_checkpoint(verifier):
    with pytest.raises(IotwinError, match="epoch 1, batch 3: the script has saved no checkpoint"):
        verifier.resume((1, 3))


def test_a_server_that_dies_is_reported():
    with ScriptRuns({}) as server:
        server._server.kill()
        with pytest.raises(IotwinError, match="the process that runs the script has died"):
            server.run(RunRequest(options=[], output="unused"))


def test_an_interruption_ends_the_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), ScriptRuns({}) as server:
        server._socket.send(msgspec.json.encode(RunRequest(options=[str(SCRIPT)], output=str(tmp_path / "printed"))))
        raise KeyboardInterrupt
    assert server._server.returncode == -signal.SIGKILL


def test_a_script_that_fails_is_reported_in_one_line(verifier):
    failing = Verifier(verifier._script._replace(arguments=["fail"]), verifier._server)
    with pytest.raises(IotwinError, match=r"must run to its end to be verified, but it failed: ValueError: on request"):
        failing.run_reference()


STEPS = [SimpleNamespace(epoch=epoch, batch=batch) for epoch, batch in POINTS]


@given(st.integers(1, 12), st.integers(0, 2**40))
def test_a_sample_of_points(count, seed):
    found = resume_points(f"sample:{count}", STEPS, seed)
    assert found == sorted(set(found)) and set(found) <= set(POINTS) and len(found) == min(count, len(POINTS))
    assert {(1, 0), (1, 3)} <= set(found) or count < 3


def test_points_to_resume_at():
    assert resume_points("all", STEPS, 0) == POINTS
    assert resume_points("1:2,0:1", STEPS, 0) == [(1, 2), (0, 1)]
    for text, message in {
        "0:9": "no batch 9 in epoch 0",
        "sample:0": "above 0",
        "sample:x": "above 0",
        "some": "lists no batch",
    }.items():
        with pytest.raises(UsageError, match=message):
            resume_points(text, STEPS, 0)


@given(st.sets(st.integers(0, 20)), st.integers(1, 20))
def test_needed_parts_are_found(wanted, count):
    parts = [str(number) for number in range(count)]
    asked = []

    def is_equal(without):
        asked.append(without)
        return not any(int(part) in wanted for part in without)

    assert needed(parts, is_equal) == [part for part in parts if int(part) in wanted]
    assert len(asked) <= 1 + 2 * 5 * len(wanted), "parts that are not needed are left out together"


@given(st.lists(st.floats(0.5, 8), min_size=2, max_size=6))
def test_the_spread_of_losses_is_relative(losses):
    spread = relative_spread(losses)
    assert spread == pytest.approx((max(losses) - min(losses)) * len(losses) / sum(losses))
    assert relative_spread([-2 * loss for loss in losses]) == pytest.approx(spread)


def test_losses_without_a_spread():
    for losses in ([], [1.0], [1.0, float("inf")], [-1.0, 1.0]):
        assert relative_spread(losses) is None
    assert relative_spread([0.0, 0.0]) == relative_spread([3.0, 3.0]) == 0


STEP = LoggedStep(0, 0, [1, 2], "input", ["0x1p+0"], "parameters", "optimizer", "rng")
CHANGES = {
    "indices": {"indices": [2, 1]},
    "input": {"inputs_sha256": None},
    "loss": {"loss": ["0x1p+0", "0x1p+1"]},
    "parameter": {"parameters_sha256": "other"},
    "optimizer": {"optimizer_sha256": "other"},
    "rng": {"rng_sha256": "other"},
}


@given(st.lists(st.tuples(st.sampled_from(list(CHANGES)), st.integers(2, 5)), max_size=8))
def test_the_first_cause_is_reported(changes):
    reference = [msgspec.structs.replace(STEP, batch=batch) for batch in range(6)]
    found = reference[2:]
    for what, step in changes:
        found[step - 2] = msgspec.structs.replace(found[step - 2], **CHANGES[what])
    order = list(CHANGES)
    first = min(((step, order.index(what)) for what, step in changes), default=None)
    expected = None if first is None else StepDifference(first[0], order[first[1]])
    assert first_difference(reference, found, 2) == expected


def test_missing_and_further_steps():
    steps = [msgspec.structs.replace(STEP, batch=batch) for batch in range(4)]
    assert first_difference(steps, steps[1:3], 1) == StepDifference(3, "indices", "number of steps")
    assert first_difference(steps[:3], steps) == StepDifference(3, "indices", "number of steps")
    assert first_difference(steps, steps[2:], 1) == StepDifference(1, "indices")


def test_a_log_of_steps(tmp_path):
    (tmp_path / "log").write_bytes(msgspec.json.encode(STEP) + b"\n")
    assert read_steps(tmp_path / "log") == [STEP]
    (tmp_path / "log").write_text("{}\n")
    with pytest.raises(IotwinError, match="epoch"):
        read_steps(tmp_path / "log")
    with pytest.raises(IotwinError, match="has logged no step"):
        read_steps(tmp_path / "nothing")
