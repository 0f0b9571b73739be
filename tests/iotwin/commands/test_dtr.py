"""iotwin dtr: the documents of its actions, and what they refuse."""

import json

from tests.processes import call, one_line
from tests.workloads.dtr.random_logs import write_random_log


def test_all_evictions_are_those_of_the_budget_and_of_the_policy(tmp_path):
    log = write_random_log(tmp_path / "random.log", 5)
    done = call("dtr", "simulate", log, "--heuristic", "DTR,LRU", "--ratio", "0.8,0.5", "--json")
    runs = json.loads(done.stdout)["runs"]
    assert len(runs) == 4 and any(run["deallocations"] for run in runs)
    assert all(run["evictions_total"] == run["evictions"] + run["deallocations"] for run in runs)


def test_documents_that_nest_too_deeply_are_refused_in_one_line(tmp_path):
    deep = b"[" * 100_000
    (tmp_path / "deep.log").write_bytes(b'{"INSTRUCTION":"CALL","ARGS":' + deep + b"\n")
    for name in ("curves.json", "data.json"):
        (tmp_path / name).write_bytes(deep)
    pictures = ("-o", tmp_path / "pictures")
    for words in (("simulate", tmp_path / "deep.log"), ("plot", tmp_path, *pictures),
                  ("plot", tmp_path / "curves.json", tmp_path / "data.json", *pictures)):  # fmt: skip
        done = call("dtr", *words)
        assert done.returncode in (1, 2) and one_line(done), words
