"""--json gives exactly one JSON document on stdout and nothing else; --quiet gives nothing at all."""

import json
from pathlib import Path

import pytest

from tests.conftest import run_iotwin
from tests.docs.conftest import cut_off_recording
from tests.iotwin.processes import call


def commands(traces: list[Path], folder: Path) -> dict[str, list[str | Path]]:
    first, second = traces
    return {
        "doctor": ["doctor"],
        "generate": ["generate", "unet3d", "-o", folder / "data", "--samples", "2", "--scale", "0.1"],
        "generate --dry-run": ["generate", "dlrm", "-o", folder / "planned", "--size", "1TB", "--dry-run"],
        "info": ["info", first],
        "stats": ["stats", first, second, "--by", "file"],
        "stats --sql": ["stats", first, "--sql", "select count(*) from events"],
        "compare": ["compare", first, second, "--repeats", first],
        "fit": ["fit", first, "-o", folder / "twin.yaml"],
        "plot": ["plot", "timeline", first, second, "-o", folder / "t.png"],
        "report": ["report", first, second, "-o", folder / "r.html"],
        "recover": ["recover", folder / "cut.trace"],
        "run": ["run", "timeline-smoke", "--dry-run"],
    }


KEYS = {
    "doctor": {"can_trace", "checks"},
    "generate": {"state", "directory", "workload", "samples", "seed", "files", "size_bytes"},
    "generate --dry-run": {"state", "samples", "files", "size_bytes"},
    "info": {"trace", "manifest", "operations", "files", "phases", "processes"},
    "stats": {"traces", "lost", "by", "rows"},
    "stats --sql": {"columns", "rows"},
    "compare": {"overall", "dimensions", "noise_floor", "verdict"},
    "fit": {"twin", "evidence", "confidence", "assumptions"},
    "plot": {"output", "traces"},
    "report": {"output", "size_bytes", "traces"},
    "recover": {"trace", "events", "lost"},
    "run": {"experiment", "cells"},
}


@pytest.mark.parametrize("name", list(KEYS))
def test_json_is_one_document_and_nothing_else(name, traces, tmp_path):
    cut_off_recording(tmp_path / "cut.trace")
    result = run_iotwin(*commands(traces, tmp_path)[name], "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)  # refuses a second document, or a word beside the first
    assert document.keys() >= KEYS[name]
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("name", list(KEYS))
def test_quiet_is_silent(name, traces, tmp_path):
    cut_off_recording(tmp_path / "cut.trace")
    result = call(*commands(traces, tmp_path)[name], "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_error_under_json_leaves_stdout_empty(tmp_path):
    result = run_iotwin("info", tmp_path / "nothing", "--json")
    assert result.returncode == 1 and result.stdout == "" and "no such trace" in result.stderr


def test_doctor(capsys):
    """Every check is told, with a reason exactly where the answer is no."""
    from iotwin.main import main

    status = main(["doctor"])
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document["checks"]] == [
        "libbpf", "bcc", "bpftrace", "strace", "preload", "cgroup filter", "clang", "torch", "GPU samples", "python",
    ]  # fmt: skip
    for row in document["checks"]:
        line = next(line for line in text.splitlines() if row["name"] in line)
        assert line.startswith("yes " if row["reason"] is None else "no ")
    can_trace = any(row["reason"] is None for row in document["checks"][:2])
    assert document["can_trace"] == can_trace and status == (0 if can_trace else 1)
