"""The notebook of the documentation runs, cell by cell, in a new interpreter, and each answer has a table."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest

from tests.conftest import PATIENCE_S, ROOT

NOTEBOOK = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))

# Runs each cell as a notebook does, and shows the value of its last line.
RUN = """
import ast, json, sys

names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        lines = ast.parse("".join(cell["source"])).body
        last = lines.pop() if isinstance(lines[-1], ast.Expr) else None
        exec(compile(ast.Module(lines, []), "cell", "exec"), names)
        if last is not None:
            print(json.dumps(eval(compile(ast.Expression(last.value), "cell", "eval"), names)._repr_html_()))
print(json.dumps([len(names["axes"].collections), int(names["rate"].to_numpy().sum())]))
"""


def test_the_notebook_runs(prepared, tmp_path, environment):
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    for name in ("real", "rerun", "twin"):
        shutil.copytree(prepared / f"{name}.trace", tmp_path / "demo" / f"{name}.trace")
    done = subprocess.run(
        [sys.executable, "-c", RUN, ROOT / "docs" / "notebook.ipynb"],
        cwd=tmp_path, env={**environment, "MPLBACKEND": "agg"}, timeout=PATIENCE_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *tables, (kinds, read_bytes) = map(json.loads, done.stdout.splitlines())
    trace, by_file, answer, comparison, advice, twin = tables
    events = pq.read_table(prepared / "real.trace" / "events.parquet").to_pylist()
    read = [event for event in events if event["op"] in ("read", "pread64") and event["result"] > 0]
    files = pq.read_table(prepared / "real.trace" / "files.parquet").to_pylist()
    of_file: Counter[str] = Counter()
    for event in read:
        of_file[files[event["file_id"]]["path"]] += event["result"]
    assert f"{len(events)} events" in trace and str(max(of_file.values())) in by_file
    assert ">dataset<" in answer and ">overall<" in comparison and ">start_up<" in advice and ">edits<" in twin
    assert kinds == len({files[event["file_id"]]["kind"] for event in read}) and read_bytes == sum(of_file.values())


def test_the_notebook_holds_no_outputs():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
