"""Unmodified scripts resume equal, with real training in processes of their own."""

import hashlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from iotwin.common.checkpoints import checkpoints
from tests.workloads.detrain.script_server import Ended, ScriptServer

SCRIPT = '''import argparse
import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    """Samples in files, with random noise; each read is written down."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.npy"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open("reads", "a") as reads:
            reads.write(f"{index}\\n")
        sample = torch.from_numpy(np.load(self.paths[index]))
        return sample + 0.1 * torch.randn(4) * random.random(), index


class Meter:
    def __init__(self):
        self.total, self.history = 0.0, []

    def add(self, value):
        self.total += value
        self.history.append(value)


def make_step(model, optimizer, scheduler):
    def step(inputs):
        loss = (model(inputs) ** 2).mean() / 2
        loss.backward()
        step.calls += 1
        if step.calls % 2 == 0:  # gradients of two batches
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        return loss.item()

    step.calls = 0
    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--fail", type=int, default=-1)
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    # Persistent workers draw no seed in later epochs, so that they shuffle otherwise than new ones.
    workers = {"num_workers": args.workers, "persistent_workers": args.workers == 2, "prefetch_factor": 3} if args.workers else {}
    loader = DataLoader(Files("data"), 4, shuffle=True, **workers)
    step, meter, best, average = make_step(model, optimizer, scheduler), Meter(), float("inf"), None
    for epoch in range(args.epochs):
        for batch, (inputs, index) in enumerate(loader):
            loss = step(inputs)
            meter.add(loss)
            average = loss if average is None else 0.9 * average + 0.1 * loss
            if batch == args.fail:
                raise ValueError("the script's own error")
            if args.wait:
                print("step", flush=True)
                __import__("time").sleep(args.wait)
        best = min(best, loss)
        print(epoch, best.hex(), average.hex(), meter.total.hex(), len(meter.history), flush=True)


main()
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ScriptServer(tmp_path_factory.mktemp("runs")) as server:
        yield server


class Runs(NamedTuple):
    """Runs of the script in a folder with its data."""

    server: ScriptServer
    folder: Path

    def run(self, *options: object, status: int = 0) -> Ended:
        ended = self.server.run(["-o", "run", *options])
        assert ended.status == status, ended.err
        return ended

    def steps(self, *options: object) -> list[dict]:
        (log := self.folder / "steps").unlink(missing_ok=True)
        self.run("--steps-log", log, *options)
        return [json.loads(line) for line in log.read_text().splitlines()]

    def reads(self) -> list[int]:
        written = self.folder / "reads"
        found = list(map(int, written.read_text().split())) if written.exists() else []
        written.unlink(missing_ok=True)
        return found

    def killed(self, when: Callable[[str], bool], *options: object) -> None:
        """Start a run, and kill it when what it has printed satisfies `when`."""
        self.server.start(["-o", "run", *options])
        while not when((self.folder / "out.txt").read_text()):
            time.sleep(0.02)
        self.server.signal(signal.SIGKILL)
        assert self.server.wait().status == -signal.SIGKILL


@pytest.fixture
def runs(tmp_path, server):
    (tmp_path / "data").mkdir()
    for number in range(20):
        np.save(tmp_path / "data" / f"{number:02}.npy", np.full(4, number / 10, np.float32))
    (tmp_path / "train.py").write_text(SCRIPT)
    for name in ("out.txt", "err.txt"):
        (tmp_path / name).touch()
    server.folder = tmp_path
    return Runs(server, tmp_path)


def test_a_resumed_run_is_equal_and_reads_nothing_that_it_skips(runs):
    whole = runs.steps("--at", "0:3,1:2", "train.py")
    order = runs.reads()
    assert len(whole) == 10 and len(order) == 40
    for name, first in (("step-3", 3), ("step-7", 7)):
        assert runs.steps("--resume", name, "train.py") == whole[first:]
        assert runs.reads() == order[4 * first :]
    assert runs.steps("--resume", "step-7", "--replay", "replay-data", "train.py")[0]["indices"] == whole[7]["indices"]
    assert runs.reads() == order, "replayed data are read, and nothing twice"
    document = json.loads((runs.folder / "run" / "run.json").read_text())
    assert (document["resumed_from"], document["replay"], document["steps"], document["epochs"]) == (
        "step-7",
        "replay-data",
        10,
        2,
    )


def test_workers_of_any_number_give_the_same_run_with_keyed_items(runs):
    seeded = ("--determinism", "seeded")
    whole = runs.steps(*seeded, "--at", "1:2", "train.py")
    for workers in (1, 4):
        assert runs.steps(*seeded, "--resume", "never", "train.py", "--workers", workers) == whole
        runs.reads()
        assert runs.steps(*seeded, "train.py", "--workers", workers) == whole[7:]
        assert len(runs.reads()) == 12


def test_an_iterator_that_has_not_begun_draws_with_its_first_batch(runs):
    """Without workers, the order of a pass is drawn when its first batch is fetched, and with workers when they begin."""
    script = SCRIPT.replace("enumerate(loader)", "enumerate(range(5))").replace(
        "            loss = step(inputs)", "            inputs, index = next(batches)\n            loss = step(inputs)"
    )
    script = script.replace("batch, (inputs, index) in", "batch in").replace(
        "        for batch in", "        batches = iter(loader)\n        for batch in"
    )
    (runs.folder / "train.py").write_text(script)
    seeded = ("--determinism", "seeded")
    whole = runs.steps(*seeded, "--at", "0:0,1:0,1:1", "train.py")
    assert len(whole) == 10
    for name, first in (("step-0", 0), ("step-5", 5), ("step-6", 6)):
        assert runs.steps(*seeded, "--resume", name, "train.py", "--workers", "1") == whole[first:]
        assert runs.steps(*seeded, "--resume", name, "train.py") == whole[first:]


def test_a_run_that_differs_is_refused_instead_of_continued(runs):
    """Without keyed items, augmentation depends on what the worker has read before."""
    whole = runs.steps("--at", "1:2", "train.py", "--workers", "2")
    assert "resume with --replay replay-data" in runs.run("train.py", "--workers", "2", status=1).err
    assert runs.steps("--replay", "replay-data", "train.py", "--workers", "2") == whole[7:]
    assert runs.steps("--replay", "full", "train.py", "--workers", "2") == whole


def test_without_generators_a_resumed_run_differs(runs):
    whole = runs.steps("--determinism", "seeded", "--at", "1:2", "train.py")
    dropped = runs.steps("--determinism", "seeded", "--drop", "rng", "train.py")
    assert [step["indices"] for step in dropped] != [step["indices"] for step in whole[7:]] or dropped != whole[7:]


def test_a_killed_run_resumes_and_the_users_files_stay_as_they_are(runs):
    def digests() -> dict[str, str]:
        paths = [runs.folder / "train.py", *sorted((runs.folder / "data").iterdir())]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    before = digests()
    whole = runs.run("--resume", "never", "train.py").out
    runs.killed(lambda printed: printed.count("step") > 7, "--every", "1batches", "train.py", "--wait", "0.1")
    assert digests() == before
    assert runs.run("train.py").out == whole.splitlines(keepends=True)[-1]
    assert digests() == before


def test_a_signal_saves_before_the_next_batch(runs):
    def saved(printed: str) -> bool:
        if printed and not asked:
            runs.server.signal(signal.SIGUSR1)
            asked.append(True)
        store = runs.folder / "run" / "checkpoints"
        return store.is_dir() and bool(checkpoints(store))

    asked: list[bool] = []
    runs.killed(saved, "--every", "1h", "train.py", "--wait", "0.1")
    assert {each.manifest.reason for each in checkpoints(runs.folder / "run" / "checkpoints") if each.manifest} == {"signal"}


@pytest.mark.parametrize(("every", "saved"), [("1epochs", ["step-5"]), ("4batches", ["step-4", "step-8"])])
def test_checkpoints_are_taken_as_often_as_asked(runs, every, saved):
    runs.run("--every", every, "train.py")
    assert json.loads((runs.folder / "run" / "run.json").read_text())["checkpoints"] == saved


def test_errors_of_the_script_are_its_own(runs):
    failed = runs.run("--every", "1epochs", "train.py", "--fail", "2", status=1)
    assert 'train.py", line ' in failed.err and "ValueError: the script's own error" in failed.err
    assert (runs.folder / "run" / "run.json").is_file()
    (runs.folder / "train.py").write_text(SCRIPT + "raise SystemExit(3)\n")
    runs.run("train.py", "--epochs", "1", status=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "run/checkpoints/step-7/rank-0.raw").write_bytes(b""), "holds no checkpoint that loads"),
        (lambda folder: (folder / "train.py").rename(folder / "other.py"), "is of script train.py, this run of other.py"),
    ],
)
def test_a_checkpoint_that_does_not_fit_ends_in_one_line(runs, change, message):
    runs.run("--at", "1:2", "train.py")
    change(runs.folder)
    script = "other.py" if (runs.folder / "other.py").exists() else "train.py"
    assert message in runs.run(script, status=1).err.splitlines()[-1]


def test_options_that_contradict_one_another_are_refused(runs):
    runs.run("--at", "1:2", "train.py")
    assert "--determinism off --seed 0" in runs.run("--determinism", "strict", "train.py", status=2).err
    assert "'2' is no period" in runs.run("--every", "2", "train.py", status=2).err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--keep", "-1", "--keep must be at least 0 (got -1)"),
        ("--workers", "-1", "--workers must be at least 0 (got -1)"),
        ("--steps-log", "missing/steps.jsonl", "--steps-log missing/steps.jsonl: name a file in a folder that exists"),
        ("--steps-log", ".", "--steps-log .: name a file in a folder that exists"),
    ],
)
def test_options_that_no_run_can_use_are_refused_before_the_script_starts(runs, option, value, message):
    refused = runs.run(option, value, "train.py", status=2)
    assert message in refused.err and not refused.out


@pytest.mark.parametrize(("replay", "parts"), [("restore", ["load", "restore"]), ("replay-data", ["load", "replay", "restore"])])
def test_phases_and_the_resumption_are_logged_for_a_tracer(runs, replay, parts):
    def logged(*options: object) -> list[dict]:
        lines = runs.run("--log-phases", *options).out.splitlines()
        return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines if line.startswith(":::MLLOG ")]

    def numbers(lines: list[dict], key: str, edge: str) -> list[tuple]:
        own = [line["metadata"] for line in lines if line["key"] == key and line["event_type"] == f"INTERVAL_{edge}"]
        return [(each.get("epoch_num"), each.get("step_num")) for each in own]

    begun = logged("--at", "1:2", "train.py")
    assert numbers(begun, "step", "START") == [(epoch, step) for epoch in (1, 2) for step in range(1, 6)]
    assert len(numbers(begun, "step", "END")) == 10
    assert numbers(begun, "epoch", "START") == numbers(begun, "epoch", "END") == [(1, None), (2, None)]
    assert len(numbers(begun, "checkpoint", "END")) == 1 and not {"load", "restore"} & {line["key"] for line in begun}
    resumed = logged("--replay", replay, "train.py")
    assert numbers(resumed, "step", "START") == [(2, step) for step in (3, 4, 5)]
    assert [line["key"] for line in resumed if isinstance(line["value"], dict)] == parts
    assert all(line["value"]["duration"] > 0 for line in resumed if isinstance(line["value"], dict))
    points = {line["key"]: line["value"] for line in resumed if line["event_type"] == "POINT_IN_TIME"}
    count = "skipped_batches" if replay == "restore" else "replayed_batches"
    assert points == {"resumed_by": replay, count: 7}
