"""The command `iotwin detrain verify`: its options, its document and what it prints."""

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from iotwin.commands.detrain.verify import DetrainVerifyCommand
from iotwin.common.errors import UsageError

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("verified_script.py")


def verify(*words):
    """Run the command and return its outcome."""
    command, parser = DetrainVerifyCommand(), ArgumentParser()
    command.prepare_parser(parser)
    return command, command.run(parser.parse_args([str(word) for word in words]))


def test_the_command_writes_its_document_and_fails_without_a_part(tmp_path, capsys):
    output = tmp_path / "check"
    options = ["--reruns", 1, "--resume-at", "1:2", "--drop", "scaler", "--workers", "0,1", "--replay", "replay-data"]
    command, outcome = verify(SCRIPT, "-o", output, *options)
    document = outcome.document
    assert json.loads((output / "verification.json").read_text()) == document
    assert outcome.exit_status == 0 and document["equal"], "the script's scaler is off"
    assert {each["replay"] for each in document["resumes"]} == {"replay-data"}
    assert document["steps"] == 8 and document["dropped"] == "scaler" and document["variance"] is None
    assert [each["workers"] for each in document["resumes"]] == [0, 1] == document["same_with_workers"]
    assert document["manifest"]["determinism"] == "strict"
    command.show(document)
    assert capsys.readouterr().out == "8 steps; 2 of 2 reruns and 2 of 2 resumed runs are equal bit for bit\n"
    difference = {"step": 6, "what": "gradient", "name": "fc", "op": "aten.mm", "rank": 0}
    other = {**document["resumes"][0], "equal": False, "first_difference": difference}
    elsewhere = {**other, "first_difference": None, "differs_from_saved": ["threads: 2, here 1"]}
    failed = {**other, "error": "no memory"}
    found = {"needed_state": ["rng", "main().model"], "entropy": [{"source": "os.urandom", "file": "train.py", "line": 3}]}
    found |= {"variance": {"determinism": "off", "relative_spread": 0.25, "runs": 3}}
    found |= {"nondeterministic_ops": [{"op": "put_", "file": "train.py", "line": 4}]}
    command.show({**document, **found, "resumes": [other, elsewhere, failed]})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "resumed at 1:2, 0 workers: differs from step 6 on, first in gradient of fc, computed by aten.mm",
        "resumed at 1:2, 0 workers: equal, but not under the same conditions: threads: 2, here 1",
        "resumed at 1:2, 0 workers: failed: no memory",
        "a resumed run needs: rng, main().model",
        "without determinism, the last loss of 3 runs spreads by 0.25 of its mean",
        "train.py:3: os.urandom draws without a seed",
        "train.py:4: put_ has no deterministic implementation",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--workers", "0,x"], "--workers: 'x' is no number"), (["--workers", "-1"], "--workers: '-1' is no number")],
)
def test_wrong_options(tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        verify(SCRIPT, "-o", tmp_path / "check", f"{words[0]}={words[1]}")
    with pytest.raises(UsageError, match="is no file"):
        verify(tmp_path, "-o", tmp_path / "check")
