"""Files that somebody else made, given to commands of the training systems: refused in one line, and never waited for."""

import os
from pathlib import Path

import pytest

from iotwin.main import main
from tests.conftest import ROOT

GRAPH = ROOT / "tests" / "workloads" / "pipedream" / "data" / "vgg16.graph.txt"
DIGITS, DEEP = "1" * 5000, "[" * 200_000


def fifo(path: Path) -> None:
    os.mkfifo(path)


def deep(path: Path) -> None:
    path.write_text(f'{{"INSTRUCTION": "RELEASE", "NAME": {DEEP}\n')


def digits(path: Path) -> None:
    path.write_text(f'{{"version": {DIGITS}, "stages": []}}')


def digits_as_key(path: Path) -> None:
    path.write_text(f'{{"module_to_stage_map": [0], "stage_to_rank_map": {{"{DIGITS}": [0]}}}}')


def digits_of_stage(path: Path) -> None:
    first, rest = GRAPH.read_text().split("\n", 1)
    path.write_text(f"{first} -- stage_id={DIGITS}\n{rest}")


@pytest.mark.parametrize("make", [fifo, deep, digits, digits_as_key, digits_of_stage])
@pytest.mark.parametrize(
    "words",
    [
        "pipedream graph F", "pipedream simulate F", "pipedream validate F", "pipedream optimize F -n 4", "dtr simulate F",
        "dtr validate F", "dtr plot F F -o x.svg", "dtr run F --dry-run", "plot curves F -o x.svg", "twin respond F -o out",
        "run F -o out", "trace --jobs F -o out",
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused_in_one_line(tmp_path, monkeypatch, capfd, make, words):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "F")
    assert main(words.split()) != 0
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err + printed.out and "F" in printed.err + printed.out


def test_a_driver_file_whose_conf_has_a_name_that_is_too_long_is_not_valid(tmp_path, capfd):
    (tmp_path / "a.yml").write_text(f"config_file: {'a' * 5000}\n")
    assert main(["pipedream", "validate", str(tmp_path / "a.yml")]) == 1
    assert "is neither in the folder of the file nor below --models" in capfd.readouterr().out


def test_more_workers_than_any_plan_has_are_refused(capfd):
    assert main(["pipedream", "optimize", str(GRAPH), "-n", "1" + "0" * 20]) == 2
    assert "at most 4096 workers" in capfd.readouterr().err


@pytest.mark.parametrize("content", [DEEP, '{"chk_freq": 1e999}', f'{{"chk_freq": {DIGITS}}}', '{"chk_freq": NaN}'])
def test_a_hostile_cache_of_the_original_checkfreq_counts_as_none(tmp_path, content):
    profile = pytest.importorskip("iotwin.workloads.checkfreq.profile", reason="PyTorch")
    (tmp_path / ".cache_vgg16_32").write_text(content)
    assert profile.recall_theirs(tmp_path, "vgg16", 32) is None
