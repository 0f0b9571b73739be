"""The events that DLIO logs by DFTracer, counted and held against what the run itself tells."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iotwin.main import main

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
