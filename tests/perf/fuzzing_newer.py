"""What is fuzzed of the files of the newer commands: graphs, plans, logs, curves, experiments, lists of jobs, caches."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.conftest import ROOT
from tests.perf.fuzzing import Subject, damaged

_WORDS = (b"9" * 5000, b"1e999", b"[" * 100_000, b"NaN", b"stage_id=" + b"1" * 5000, b" -- ", b"\t", b"*a", b"&a [", b"- ", b": ")
_PIPEDREAM = ROOT / "tests" / "workloads" / "pipedream" / "data"


def subjects() -> list[Subject]:
    """Return the subjects; what they call is imported first, as loading a library is no finding."""
    from iotwin.loops.experiments.experiment import SHIPPED, read_experiment
    from iotwin.loops.traced_jobs import read_jobs
    from iotwin.loops.twin_from_trace import read_summary
    from iotwin.trace_visuals.curves import read_sheet
    from iotwin.trace_visuals.report.response_table import response_document
    from iotwin.workloads.checkfreq.profile import recall_theirs
    from iotwin.workloads.dtr.simulator.log_format import read_log
    from iotwin.workloads.dtr.simulator.log_manifest import read_manifest
    from iotwin.workloads.dtr.simulator.measured import panels_of
    from iotwin.workloads.dtr.static.planner_graph import read_dag
    from iotwin.workloads.pipedream.plan.driver_file import read_driver
    from iotwin.workloads.pipedream.plan.graph_file import read_graph
    from iotwin.workloads.pipedream.plan.plan_file import read_plan
    from tests.workloads.dtr.random_logs import write_line

    conf = (_PIPEDREAM / "confs" / "vgg16__gpus=4__hybrid_conf.json").read_bytes()
    driver = (_PIPEDREAM / "drivers" / "vgg16_4pipedream.yml").read_bytes()
    experiment = (SHIPPED / "checkfreq-smoke.yaml").read_bytes()
    curve = json.dumps(
        {"title": "t", "x": {"label": "x"}, "y": {"label": "y"}, "series": [{"name": "a", "x": [1, 2], "y": [1, 2]}]}
    )
    log = b"".join(
        [
            write_line("CONSTANT", NAME="x1"), write_line("MEMORY", NAME="x1", MEMORY=8),
            write_line("CALL", NAME="op", ARGS=["x1"], RESULT=["x2"], TIME=3),
            write_line("MEMORY", NAME="x2", MEMORY=8), write_line("ALIAS", NAME="x2", ALIAS=-1),
        ]
    )  # fmt: skip
    dag = json.dumps({"cost": [1, 1], "size": [1, 1], "args": [[], [0]], "forward": 1}).encode()
    side = {"seconds": 1.0}
    response = json.dumps({"changes": [{"change": "a", "of": "epoch", "job": side, "twin": side, "ratio": 1.0}]}).encode()
    measured = json.dumps({"unet": [{"specific_params": {"memory_budget": 1}, "summary": [{"time": {"median": 1}}]}]}).encode()
    cache = json.dumps({"chk_freq": 5, "self._chk_fn": "cpu", "self._use_thread": True}).encode()
    summary = json.dumps({"overall": 1, "verdict": "v", "noise_floor": 1, "best_round": 1, "source": {"counts": {}}, "rounds": [],
                          "assumptions": []}).encode()  # fmt: skip
    return [
        _subject("a graph of PipeDream", (_PIPEDREAM / "vgg16.graph.txt").read_bytes()[:3000], read_graph),
        _subject("a plan of PipeDream", conf, read_plan),
        _subject("a driver file of PipeDream", driver, lambda path: read_driver(path).document()),
        _subject("a log of DTR", log, read_log),
        _subject("a manifest of DTR's logs", b'{"models": [{"name": "a", "log": "a.log"}]}', read_manifest),
        _subject("a graph of DTR's planners", dag, read_dag),
        _subject("measurements of DTR", measured, lambda path: panels_of([path, path])),
        _subject("curves", curve.encode(), read_sheet),
        _subject("a response", response, response_document),
        _subject("an experiment", experiment, read_experiment),
        _subject("jobs", b"first: {command: [python, a.py], environment: {A: b}}\nsecond: {command: [b], pid: 3}\n", read_jobs),
        _subject("a cache of CheckFreq", cache, lambda path: recall_theirs(path.parent, "a", 1), ".cache_a_1"),
        _subject("a twin's summary", summary, lambda path: read_summary(path.parent), "summary.json"),
    ]


def _subject(name: str, good: bytes, read: Callable[[Path], object], file: str = "file.json") -> Subject:
    return Subject(name, partial(_damaged, good), partial(_read, read, file))


def _damaged(good: bytes, rng: random.Random) -> bytes:
    return damaged(rng, good, _WORDS)


def _read(read: Callable[[Path], object], file: str, content: bytes, directory: Path) -> None:
    (directory / file).write_bytes(content)
    read(directory / file)
