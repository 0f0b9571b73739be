"""--json gives exactly one JSON document on stdout and nothing else; --quiet gives nothing at all."""

import json
import tomllib
from pathlib import Path

import pytest

from iotwin import main
from tests.conftest import ROOT, run_iotwin
from tests.docs.conftest import cut_off_recording
from tests.processes import call


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
    "fit": {"twin", "evidence", "confidence", "coverage", "assumptions"},
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


@pytest.mark.parametrize(
    "document",
    [{}, {"a": 1, "b": None, "c": "x, y"}, {"none": [], "few": [1, {"d": None}], "pair": (1, "e")}, {"many": [*range(9)]}],
)
def test_the_pieces_of_a_document_are_its_json(document, monkeypatch):
    monkeypatch.setattr(main, "_ITEMS_AT_ONCE", 4)
    assert "".join(main._json_pieces(document)) == json.dumps(document) + "\n"


def test_an_error_under_json_leaves_stdout_empty(tmp_path):
    result = run_iotwin("info", tmp_path / "nothing", "--json")
    assert result.returncode == 1 and result.stdout == "" and "no such trace" in result.stderr


def test_doctor(capsys, monkeypatch):
    """Every check is told, with a reason exactly where the answer is no."""
    monkeypatch.setenv("COLUMNS", "300")  # a line for each
    status = main.main(["doctor"])
    text = capsys.readouterr().out
    assert main.main(["doctor", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document["checks"]] == [
        "libbpf", "bcc", "bpftrace", "strace", "preload", "cgroup filter", "capped reads", "memory limit", "clang", "docker",
        "GPU samples", "torch", "hdf5", "tensorflow", "containers", "gpu", "sql", "polars", "dask", "s3", "dtr", "mpi",
        "pipedream", "python",
    ]  # fmt: skip
    lines = text.splitlines()[1:]
    assert len(lines) == len(document["checks"]) + 2
    for line, row in zip(lines, document["checks"], strict=False):
        answer, name = line[:5].strip(), line[5:].partition("  ")[0]
        assert (answer, name) == ("yes" if row["reason"] is None else "no", row["name"])
        assert (row["reason"] or "") in line
    can_trace = any(row["reason"] is None for row in document["checks"][:5])
    assert document["can_trace"] == can_trace and status == (0 if can_trace else 1)


def test_doctor_has_a_line_for_each_extra():
    from iotwin.loops.doctor_checks import EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"test"}


def test_doctor_says_how_to_start_docker(tmp_path, monkeypatch):
    from iotwin.loops.doctor_checks import _docker_reason

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert _docker_reason() == "not installed; install the package docker.io"
    for name, script in {"docker": "echo Cannot connect >&2; exit 1", "dockerd": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    start = "systemctl start docker" if Path("/run/systemd/system").is_dir() else "dockerd &"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert _docker_reason() == f"the engine is not running; start it: {start}"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert _docker_reason() == f"the engine is not running; start it: {start} (as root)"
    (tmp_path / "sudo").touch(0o755)
    assert _docker_reason() == f"the engine is not running; start it: sudo {start}"
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    assert "unix:///nowhere (DOCKER_HOST)" in (_docker_reason() or "")
    monkeypatch.delenv("DOCKER_HOST")
    (tmp_path / "docker").write_text("#!/bin/sh\necho permission denied >&2; exit 1\n")
    assert "run under sudo" in (_docker_reason() or "")
    (tmp_path / "docker").write_text("#!/bin/sh\necho 29.1\n")
    assert _docker_reason() is None


def test_doctor_tells_a_missing_module(monkeypatch):
    from iotwin.loops.doctor_checks import _extra_reason

    assert _extra_reason("sql", ("json", "no_such_module")) == "no Python module no_such_module; pip install 'iotwin[sql]'"
    assert _extra_reason("sql", ("json",)) is None
