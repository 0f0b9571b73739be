"""Tables of epochs from logs, those of PipeDream's runtime and ours."""

import json

import pytest

from iotwin.main import main
from iotwin.workloads.pipedream.epoch_log_reader import epoch_results

LAST_STAGE = """loading
Epoch: [0][0/40]\tTime: 0.196 (0.196)\tMemory: 0.299 (0.299)\tLoss: 1.3746 (1.3746)\tPrec@1: 12.500 (12.500)
Epoch 0: 1800.000 seconds
Epoch start time: 10.0, epoch end time: 1810.0
Test: [0][0/2]\tTime: 0.287 (0.287)\tLoss: 9.0000 (9.0000)\tPrec@1: 1.000 (1.000)\tPrec@5: 2.000 (2.000)
Test: [0][1/2]\tTime: 0.287 (0.287)\tLoss: 1.0000 (5.0000)\tPrec@1: 9.000 (5.000)\tPrec@5: 9.000 (5.000)
 * Prec@1 23.077 Prec@5 99.500
Epoch: [1][0/40]\tTime: 0.196 (0.196)\tMemory: 0.299 (0.299)\tLoss: 1.3746 (1.3746)
Epoch 1: 3600.000 seconds
Test: [1][0/1]\tTime: 0.287 (0.287)\tLoss: nan (nan)\tPrec@1: 1.000 (1.000)\tPrec@5: 2.000 (2.000)
 * Prec@1 30.000 Prec@5 100.000
"""
FIRST_STAGE = """Epoch: [0][0/40]\tMemory: 0.2 (0.2)
Epoch 0: 1.000 seconds
Epoch 1: 2.000 seconds
Epoch 2: 7200.000 seconds
"""


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "last.log").write_text(LAST_STAGE)
    (tmp_path / "first.log").write_text(FIRST_STAGE)
    return [tmp_path / "first.log", tmp_path / "last.log"]


def test_epochs_have_the_last_stage_s_values_and_hours_add_up(logs):
    assert epoch_results(logs) == [
        {"epoch": 0, "hours": 0.5, "top1": 23.077, "top5": 99.5, "loss": 5.0, "epoch_hours": 0.5},
        {"epoch": 1, "hours": 1.5, "top1": 30.0, "top5": 100.0, "loss": None, "epoch_hours": 1.0},
        {"epoch": 2, "hours": 3.5, "top1": None, "top5": None, "loss": None, "epoch_hours": 2.0},
    ]


def test_a_first_stage_alone_has_times_only(logs):
    first = epoch_results(logs[:1])[0]
    assert first == {"epoch": 0, "hours": 1 / 3600, "top1": None, "top5": None, "loss": None, "epoch_hours": 1 / 3600}


def test_the_command_prints_a_table_or_the_document(logs, capsys):
    assert main(["pipedream", "results", *map(str, logs), "--json"]) == 0
    assert [row["epoch"] for row in json.loads(capsys.readouterr().out)["epochs"]] == [0, 1, 2]
    assert main(["pipedream", "results", *map(str, logs)]) == 0
    assert "23.0770" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "text"), [("nothing\n", "has no line such as"), (None, "cannot be read")])
def test_a_log_without_epochs_ends_in_a_line(tmp_path, capsys, content, text):
    if content is not None:
        (tmp_path / "x.log").write_text(content)
    assert main(["pipedream", "results", str(tmp_path / "x.log")]) == 1
    assert text in capsys.readouterr().err
