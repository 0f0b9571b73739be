"""The events that DLIO logs by DFTracer, counted and held against what the run itself tells."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iotwin.benchmark.emulator.journal import Measured, StepParts
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.results.ai_events import rank_events
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.main import main
from iotwin.workload_yaml import Config, Dataset

WORDS = [
    "++workload.workflow.generate_data=True", "++workload.workflow.checkpoint=True", "++workload.dataset.num_files_train=18",
    "++workload.dataset.num_files_eval=6", "++workload.reader.batch_size=2", "++workload.reader.data_loader=native",
    "++workload.train.epochs=2", "++workload.train.computation_time=0.003", "++workload.evaluation.eval_time=0.002",
    "++workload.evaluation.epochs_between_evals=1", "++workload.reader.preprocess_time=0.001", "++workload.framework=tensorflow",
]  # fmt: skip


def events(path: Path) -> list[dict]:
    opening, *lines, closing = path.read_text().splitlines()
    assert (opening, closing) == ("[", "]")
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DFTRACER_ENABLE", "1")
        assert main(["emulate", "--dlio", *WORDS, "++hydra.run.dir=o", "--ranks", "2", "--quiet"]) == 0
    return folder / "o"


def test_every_rank_has_the_events_of_its_run(output: Path) -> None:
    for rank in (0, 1):
        found = events(output / f"trace-{rank}-of-2.pfw")
        counts = Counter((event["cat"], event["name"]) for event in found)
        saved = 2 if rank == 0 else 0  # an index and a data file are one state
        assert counts == Counter({
            ("ai_root", "ai_root"): 1, ("pipeline", "epoch.block"): 2, ("pipeline", "train"): 2, ("pipeline", "evaluate"): 2,
            ("dataloader", "fetch.iter"): 2 * (4 + 3), ("compute", "compute"): 2 * (4 + 3), ("data", "item"): 2 * (8 + 3),
            ("data", "preprocess"): 2 * (8 + 3), ("checkpoint", "capture"): saved,
        })  # fmt: skip
        assert len({event["id"] for event in found}) == len(found)
        threads = {(event["name"] in ("item", "preprocess"), event["tid"]) for event in found}
        assert threads == {(True, 1), (False, 0)}  # loaders have a thread of their own


def test_times_are_those_of_the_steps(output: Path) -> None:
    table = pq.read_table(output / "metrics.parquet").to_pandas()
    steps = table[table["rank"] == 1]
    found = [event for event in events(output / "trace-1-of-2.pfw") if event["name"] == "fetch.iter"]
    assert [event["dur"] for event in found] == (steps["data_wait_ns"] // 1000).tolist()
    root = events(output / "trace-1-of-2.pfw")[0]
    between = [event["ts"] - found[0]["ts"] for event in found]
    assert between == pytest.approx(((steps["start_ns"] - steps["start_ns"].iloc[0]) / 1000).tolist(), abs=1.5)
    for event in events(output / "trace-1-of-2.pfw"):
        assert root["ts"] - 1e6 < event["ts"] <= root["ts"] + root["dur"]


def test_samples_of_a_batch_whose_start_is_unknown_end_when_the_batch_arrives() -> None:
    measured = Measured(0, wall_ahead_ns=0)
    fetched = Fetched(samples=2, size_bytes=10, read_ns=200, preprocess_ns=100)
    measured.steps.add("train", 1, 1, 1, StepParts(1000, 500, 40, 0, 0, 540), fetched)
    columns = StepTable([measured.steps]).of_rank(0)
    found = {event.name: event for event in rank_events(Config(dataset=Dataset(format="npz")), measured, columns)}
    assert (found["item"].start_ns.tolist(), found["item"].duration_ns.tolist()) == ([1200, 1350], [150, 150])
    assert (found["preprocess"].start_ns.tolist(), found["preprocess"].duration_ns.tolist()) == ([1300, 1450], [50, 50])


def test_checkpoints_alone_have_pauses_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFTRACER_ENABLE", "1")
    words = [
        "++workload.workflow.train=False",
        "++workload.workflow.evaluation=False",
        "++workload.workflow.checkpoint=True",
        "++workload.checkpoint.num_checkpoints_write=3",
        "++workload.checkpoint.num_checkpoints_read=2",
        "++hydra.run.dir=o",
    ]
    assert main(["emulate", "--dlio", *words, "--quiet"]) == 0
    counts = Counter(event["name"] for event in events(tmp_path / "o" / "trace-0-of-1.pfw"))
    assert counts == Counter({"ai_root": 1, "compute": 5, "capture": 3, "restart": 2})
