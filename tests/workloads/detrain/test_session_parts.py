"""The parts of a run that need no script: options, the point of a resumption, steps' digests, and the marks."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import write_json
from iotwin.workloads.detrain import markers, steps_log
from iotwin.workloads.detrain.options import Every, check_one_process, check_options, every, points, policy_of
from iotwin.workloads.detrain.resumption import Resumption, certify, check_inputs
from iotwin.workloads.detrain.saving.script_store import ResumePoint, ScriptStore
from iotwin.workloads.detrain.steps_log import StepsLog, inputs_sha256
from iotwin.workloads.policies.cadence import LoopPosition

# Options


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1epoch", (1, "epochs")), ("2epochs", (2, "epochs")), ("1batch", (1, "batches")), ("100batches", (100, "batches")),
        ("30s", (30, "s")), ("5min", (300, "s")), ("0.5h", (1800, "s")), ("1.5s", (1.5, "s")),
    ],
)  # fmt: skip
def test_intervals(text, found):
    assert every(text) == Every(*found)


@pytest.mark.parametrize("text", ["", "2", "0s", "0batches", "1.5batches", "0.5epochs", "2 epochs", "-1s", "1days", "x1s"])
def test_what_is_no_interval(text):
    with pytest.raises(UsageError, match=r"--every '"):
        every(text)


def test_lists_of_batches():
    assert points("0:3") == [(0, 3)]
    assert points("0:3,12:0") == [(0, 3), (12, 0)]
    for text in ("", "3", "0:3,", "a:1", "0:-1", "1:1234567890"):
        with pytest.raises(UsageError, match="lists no batches"):
            points(text)


def options(**changes: Any) -> Namespace:
    saving = {"output": Path("run"), "every": None, "at": None, "policy": None, "keep": 0}
    return Namespace(**{"script": Path(__file__), "workers": None, "steps_log": None, **saving, **changes})


def due(policy: Any, *positions: tuple[int, int, bool, int], now: float = 0.0) -> list[str | None]:
    return [policy.due(LoopPosition(epoch, step, ended, batch), now) for epoch, step, ended, batch in positions]


def test_policies():
    epochs = policy_of(options(every="2epochs"), 0.0)
    assert due(epochs, (1, 5, True, -1), (2, 10, True, -1), (2, 11, False, 1)) == [None, "epoch", None]
    batches = policy_of(options(every="3batches"), 0.0)
    assert due(batches, *((0, step, False, step) for step in range(1, 7))) == [None, None, "steps", None, None, "steps"]
    seconds = policy_of(options(every="1min"), 100.0)
    assert [seconds.due(LoopPosition(0, 1), now) for now in (159.0, 160.0, 161.0, 221.0)] == [None, "seconds", None, "seconds"]
    listed = policy_of(options(at="1:2"), 0.0)
    assert due(listed, (1, 6, False, 1), (1, 7, False, 2), (2, 12, False, 2)) == [None, "list", None]
    assert due(policy_of(options(), 0.0), (1, 1, True, 0), now=1e9) == [None]


def checkpoints_of(policy: Any, epochs: list[int], checkpoint_s: Callable[[int], float]) -> list[int]:
    """Run epochs with these numbers of batches of 1 s, and 30 s between them. Return the batches before which it saved."""
    now, step, saved = 0.0, 0, []
    for epoch, batches in enumerate(epochs):
        for batch in range(batches):
            ends = epoch > 0 and batch == 0
            reasons = [LoopPosition(epoch, step, epoch_ended=True)] if ends else []
            if any(policy.due(each, now) for each in (*reasons, LoopPosition(epoch, step, batch=batch))):
                now += checkpoint_s(step)
                policy.saved(checkpoint_s(step), now)
                saved.append(step)
            now, step = now + 1.0, step + 1
        now += 30.0
    return saved


def test_checkpoints_add_at_most_a_twentieth_to_the_time_of_training():
    policy = policy_of(options(policy="checkfreq"), 0.0)
    saved = checkpoints_of(policy, [300], lambda step: 2.0)
    assert saved[:2] == [10, 12], "two checkpoints measure what one takes"
    gaps = {after - before for before, after in pairwise(saved[1:])}
    assert min(gaps) * 0.05 >= 2.0 and max(gaps) <= 50
    decided = policy.frequency.decided
    assert (decided.step_s, decided.stall_s) == (1.0, 2.0)


def test_what_passes_between_epochs_is_no_step():
    policy = policy_of(options(policy="checkfreq"), 0.0)
    checkpoints_of(policy, [2] * 60, lambda step: 0.5)
    assert policy.frequency.decided.step_s == 1.0


def test_dearer_checkpoints_become_rarer_and_listed_batches_are_saved_too():
    policy = policy_of(options(policy="checkfreq", at="0:3,0:250"), 0.0)
    saved = checkpoints_of(policy, [900], lambda step: 0.5 if step < 300 else 5.0)
    assert saved[0] == 3 and 250 in saved
    early = [after - before for before, after in pairwise(each for each in saved if 12 <= each < 250)]
    late = [after - before for before, after in pairwise(each for each in saved if each > 500)]
    assert max(early) < 20 and min(late) >= 50


def test_contradictions(monkeypatch, tmp_path):
    check_options(options(every="1s"))
    check_options(options(output=None))
    for wrong, message in (
        (options(script=tmp_path), "is no file"),
        (options(output=None, every="1s"), "name a directory"),
        (options(output=None, at="0:1"), "name a directory"),
        (options(output=None, policy="checkfreq"), "name a directory"),
        (options(every="1s", policy="checkfreq"), "both decide"),
        (options(at="0"), "lists no batches"),
    ):
        with pytest.raises(UsageError, match=message):
            check_options(wrong)
    check_one_process("verify")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_options(options())
    with pytest.raises(UsageError, match="WORLD_SIZE is 2: iotwin detrain verify starts the ranks itself; start it once, with"):
        check_one_process("verify")


def test_a_run_that_does_not_begin_is_not_reported_by_the_document_of_an_earlier_run(monkeypatch, tmp_path, capsys):
    from iotwin.commands.detrain import run as command

    (tmp_path / "script.py").write_text("")
    (tmp_path / "run.json").write_text("{}")
    parser = ArgumentParser()
    command.DetrainRunCommand().prepare_parser(parser)
    given = parser.parse_args([str(tmp_path / "script.py"), "-o", str(tmp_path)])
    monkeypatch.setattr(command, "_status", lambda *_: 1)
    assert command.DetrainRunCommand().run(given).document == {"exit_status": 1}
    monkeypatch.setattr(command, "_status", lambda *_: write_json(tmp_path / "run.json", {"steps": 3}) or 0)
    assert command.DetrainRunCommand().run(given).document == {"steps": 3, "exit_status": 0}


def test_a_checkpoint_that_does_not_exist_is_named_with_those_that_do(tmp_path):
    store = ScriptStore(tmp_path, {"script": "train.py"})
    assert store.find("auto") is None
    with pytest.raises(IotwinError, match=r"--resume step-7: .* has no such checkpoint; it has none"):
        store.find("step-7")
    with store.store:
        store.save(ResumePoint(0, 3, 3), "list", {})
    with pytest.raises(IotwinError, match=r"--resume step-7: .* has no such checkpoint; it has step-3"):
        store.find("step-7")
    assert store.find("never") is None and store.find("step-3").name == store.find("auto").name == "step-3"


# The point of a resumption


def saved(replay: str = "restore", **state: Any) -> Resumption:
    return Resumption("step-7", ResumePoint(1, 2, 7), {"inputs_sha256": None, **state}, replay)


def test_which_batches_come_before_the_point():
    assert [saved().is_in(epoch) for epoch in (0, 1, 2)] == [False, True, False]
    assert [saved().is_after(1, batch) for batch in (0, 1, 2, 3)] == [True, True, False, False]
    assert saved().is_after(0, 5)
    alone = saved()._replace(point=ResumePoint(0, 2, 2))
    assert alone.is_in(-1) and alone.is_in(0) and not alone.is_in(1)
    assert [saved(replay).jumps for replay in ("restore", "skip-reads", "replay-data", "full")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("replay", "other"), [("restore", "replay-data"), ("skip-reads", "replay-data"), ("replay-data", "full")]
)
def test_another_batch_than_before_is_refused(replay, other):
    batch = torch.ones(2)
    check_inputs(saved(replay, inputs_sha256=inputs_sha256(batch)), batch.clone())
    check_inputs(saved(replay, inputs_sha256="x"), None)
    check_inputs(saved(replay), batch)
    with pytest.raises(IotwinError, match=f"another batch 2 of epoch 1 than before.* --replay {other}, or run"):
        check_inputs(saved(replay, inputs_sha256=inputs_sha256(batch)), batch + 1)


def test_a_state_that_differs_is_named():
    empty: dict[str, Any] = {key: {} for key in ("objects", "gradients", "tensors", "plain", "made")}
    certify(saved(**empty), empty)
    for key in empty:
        for here, before in ({"a": 1}, {}), ({}, {"a": 1}), ({"a": 1, "b": 2}, {"a": 1, "b": 3}):
            name = "b" if "b" in here else "a"
            with pytest.raises(IotwinError, match=f"^{name} is not what it was in step-7"):
                certify(saved(**{**empty, key: before}), {**empty, key: here})
        certify(saved(**{**empty, key: {"a": 1}}), {**empty, key: {"a": 1}})


# Digests of steps


def test_digests_of_batches():
    ones = torch.ones(2, 3)
    different = [
        ones, ones + 1, torch.ones(3, 2), ones.double(), [ones, ones], {"x": ones}, {"y": ones}, (ones, 1), (ones, 2),
        (ones, 1.5), 3, 4, np.arange(3), np.arange(3.0), [torch.ones(1), torch.zeros(1)], [torch.zeros(1), torch.ones(1)],
    ]  # fmt: skip
    digests = [inputs_sha256(each) for each in different]
    assert None not in digests and len(set(digests)) == len(digests)
    assert inputs_sha256(np.ones((2, 3), np.float32)) == inputs_sha256(ones) == inputs_sha256(ones.clone().requires_grad_())
    for nothing in (None, "text", True, [True, "text"], {}, np.array(["a"]), torch.ones(2, 2).to_sparse()):
        assert inputs_sha256(nothing) is None
    assert inputs_sha256((ones, "text")) == inputs_sha256((ones, None)) == inputs_sha256((ones, True))


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setattr(steps_log, "frames_of", lambda frame: [])
    monkeypatch.setattr(steps_log, "Walk", lambda frames, assign: SimpleNamespace(parts=lambda: []))
    before = torch.Tensor.backward
    yield StepsLog(tmp_path / "steps")
    torch.Tensor.backward = before  # type: ignore[method-assign]


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]


def test_a_step_has_its_losses_and_the_samples_of_its_batch(log, tmp_path):
    weight = torch.ones(2, requires_grad=True)
    log.indices.append([1, 2])
    log.indices.append([np.int64(3), torch.tensor(4), "key"])
    log.begin(0, 1, weight.detach())
    (weight * 0.5).sum().backward()
    (weight * 0.25).backward(torch.ones(2))  # no single loss
    log.end(None)
    log.begin(0, 2, None)  # the loop's body fetches the batch
    log.indices.append([(5, 6)])
    log.inputs([weight.detach()])
    (weight.sum() * 2).backward()
    log.end(None)
    log.begin(1, 0, None)
    log.end(None)
    log.begin(1, 1, None)
    log.indices.append([7])
    log.losses({"loss": 0.5, "accuracy": [0.25, 1.0], "zeta": 2.0})
    log.end(None)
    found = lines(tmp_path)
    assert [(line["epoch"], line["batch"]) for line in found] == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert [line["indices"] for line in found] == [[3, 4, "key"], [[5, 6]], None, [7]]
    hexes = [[1.0], [4.0], [], [0.25, 1.0, 2.0, 0.5]]
    assert [line["loss"] for line in found] == [[value.hex() for value in each] for each in hexes]
    assert found[0]["inputs_sha256"] == inputs_sha256(torch.ones(2)) and found[1]["inputs_sha256"] == inputs_sha256(
        [torch.ones(2)]
    )
    assert found[2]["inputs_sha256"] is None
    torch.rand(1)
    log.begin(1, 2, None)
    log.end(None)
    assert len({line["rng_sha256"] for line in found}) == 1 != len({line["rng_sha256"] for line in lines(tmp_path)})


# Marks


class FakeSession:
    """Stands for the session of a run that resumes at epoch 1, batch 2."""

    def __init__(self, resume: Resumption | None) -> None:
        self.resume, self.progress = resume, SimpleNamespace(epoch=-1, batch=-1)
        self.begun: list[tuple[int, int]] = []
        self.fetched: list[Any] = []
        self.asked = 0
        self.policy = SimpleNamespace(ask=self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def begin_epoch(self, frame: Any) -> bool:
        self.progress.epoch, self.progress.batch = self.progress.epoch + 1, -1
        return False

    def begin_batch(self, frame: Any) -> bool:
        self.progress.batch += 1
        self.begun.append((self.progress.epoch, self.progress.batch))
        self.resume = None
        return False

    def data(self, *values: Any) -> None:
        self.fetched += values


def marked(session: FakeSession, monkeypatch: pytest.MonkeyPatch, **numbers: Any) -> list[tuple[bool, list[bool]]]:
    """Return what the marks of two epochs of three batches return. `numbers`: what they get, by name."""
    monkeypatch.setattr(markers, "_session", None)
    markers.use(session)  # type: ignore[arg-type]
    return [
        (
            markers.record_epoch(epoch if "epoch" in numbers else None),
            [markers.record_batch(batch if "batch" in numbers else None) for batch in range(3)],
        )
        for epoch in range(2)
    ]


@pytest.mark.parametrize("numbers", [{}, {"epoch": 1}, {"batch": 1}, {"epoch": 1, "batch": 1}])
def test_marks_skip_what_comes_before_the_point(monkeypatch, numbers):
    session = FakeSession(saved())
    assert marked(session, monkeypatch, **numbers) == [(False, [False] * 3), (True, [False, False, True])]
    assert session.begun == [(1, 2)]
    new = FakeSession(None)
    assert marked(new, monkeypatch, **numbers) == [(True, [True] * 3)] * 2
    assert new.begun == [(epoch, batch) for epoch in range(2) for batch in range(3)]


def test_marks_read_earlier_batches_again(monkeypatch):
    session = FakeSession(saved("restore"))
    monkeypatch.setattr(markers, "_session", None)
    markers.use(session)  # type: ignore[arg-type]
    assert session.resume is not None and session.resume.replay == "replay-data"


def test_marks_without_a_run_do_nothing_but_keep_generators(monkeypatch):
    monkeypatch.setattr(markers, "_session", None)
    assert markers.record_epoch() and markers.record_batch() and markers.next_batch(lambda: 3)() == 3
    markers.checkpoint()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    markers.ignore_end()
    markers.ignore_start()
    torch.rand(5)
    markers.ignore_start()
    torch.rand(5)
    markers.ignore_end()
    markers.ignore_end()
    assert torch.rand(1) == expected


def test_marks_of_checkpoints_and_batches_reach_the_session(monkeypatch):
    session = FakeSession(None)
    monkeypatch.setattr(markers, "_session", session)
    markers.checkpoint("model", "optimizer")  # as scripts for the original call it
    from iotwin.workloads import detrain

    for name in ("enter_main", "train_loop_start", "train_loop_end", "hint"):
        assert getattr(detrain, name)("x", use=["y"]) is None
    assert detrain.register_iter(len) is len
    assert markers.next_batch(lambda value: value + 1)(2) == 3
    assert (session.asked, session.fetched) == (1, [3])
