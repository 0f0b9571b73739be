"""The resume court starts scripts of several ranks, kills all ranks at once, and compares each."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from iotwin.commands.detrain.court import DetrainCourtCommand
from iotwin.workloads.detrain.court.first_difference import Difference, first_difference_of_ranks
from iotwin.workloads.detrain.court.trial import _Outcome
from iotwin.workloads.detrain.court.update_log import Update
from iotwin.workloads.detrain.forked_runs import RunEnd

pytestmark = pytest.mark.torch
SCRIPT = """import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(24, 4)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(rank)
begin = 0
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["epoch"]
    if "naive" not in sys.argv or rank == 0:
        torch.set_rng_state(state["rng"][rank])
for epoch in range(begin, 3):
    for rows in torch.randperm(12).split(6):
        loss = model(inputs[rank::size][rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    states = [None] * size
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1, "rng": states}, "new.pt"
        )
        os.replace("new.pt", "last.pt")
dist.destroy_process_group()
"""


def tried(folder: Path, *options: str, argument: str) -> dict[str, Any]:
    """Run the command, and return its document."""
    (folder / "train.py").write_text(SCRIPT)
    command, parser = DetrainCourtCommand(), ArgumentParser()
    command.prepare_parser(parser)
    args = parser.parse_args([str(folder / "train.py"), "-o", str(folder / "court"), "--ranks", "2", *options])
    args.arguments = [argument]
    document = command.run(args).document
    command.show(document)
    return document


def test_all_ranks_are_killed_before_a_call_and_resume(tmp_path):
    document = tried(tmp_path, "--kill-at", "calls", "--kills", "1", argument="exact")
    assert (document["verdict"], document["ranks"], document["updates"], document["exact"]) == ("exact", 2, 6, 1)
    assert document["checkpoints"] == ["last.pt"] and not document["notes"]
    assert all(kill["point"]["call"] and kill["resumed_at_step"] in (2, 4) for kill in document["kills"])


def test_a_rank_that_resumes_otherwise_is_named(tmp_path, capsys):
    document = tried(tmp_path, "--kill-at", "batches", "--kills", "1", argument="naive")
    [kill] = document["kills"]
    found = kill["first_difference"]
    assert (found["step"], found["what"], found["rank"]) == (kill["resumed_at_step"], "order", 1)
    assert f"first at step {found['step']} of rank 1, in order" in capsys.readouterr().out


def test_a_rank_that_fails_is_named(tmp_path):
    (tmp_path / "errors").write_text("Killed\n")
    (tmp_path / "errors.rank-1").write_text("on request\n\n")
    ended = RunEnd(3, rank=1)
    assert _Outcome(ended, [[], []], None, tmp_path, tmp_path / "errors").last_error() == "rank 1: on request"
    (tmp_path / "none").touch()
    assert _Outcome(RunEnd(3), [[]], None, tmp_path, tmp_path / "none").last_error() == "it ended with status 3"


def test_the_cause_precedes_what_it_changes():
    update = Update(0, [1], ["a"], ["0x1p+0"], {"w": "1"}, "state", {}, "before", "after")
    other = Update(0, [1], ["a"], ["0x1p+1"], {"w": "1"}, "state", {}, "before", "after")
    weights = Update(0, [1], ["a"], ["0x1p+0"], {"w": "2"}, "state", {}, "before", "after")
    found = first_difference_of_ranks([[update]] * 3, [[update], [weights], [other]], 0)
    assert found == Difference(0, "loss", None, [], ["0x1p+0"], ["0x1p+1"], 2)
    assert first_difference_of_ranks([[update]] * 2, [[update]] * 2, 0) is None
    assert first_difference_of_ranks([[update, update], [update, update]], [[update, weights], [weights, update]], 0).rank == 1
