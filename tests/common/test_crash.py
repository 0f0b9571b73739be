"""Every state that a power cut can leave in a commit has a checkpoint that loads; the same states find what others lose."""

import importlib.util
import subprocess
import sys

import pytest

from iotwin.common.checkpoints import newest
from tests.benchmark.strace import needs_strace
from tests.common.committing import SIZES
from tests.common.crash_states import Judged, Op, Recording, judge, record, states
from tests.common.stores import step_of
from tests.conftest import ROOT

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def load_store(directory, ranks=2):
    found = newest(directory, lambda line: None)
    if found is None:
        return None
    return {step_of(found, rank, SIZES) for rank in range(ranks)}.pop()


def recorded(directory, program, *arguments, code=None):
    """The calls of a program on `directory`/root, which it finds as an earlier call of it left it."""
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", program]
    (directory / "recording").mkdir(exist_ok=True)
    words = [str(argument) for argument in arguments]
    return record([*command, *words], directory / "root", directory / "recording", cwd=ROOT)


@pytest.fixture
def committed(tmp_path):
    """Records the commit of step 2 over step 1, by two ranks, as changed by a line of Python."""

    def run(change="pass"):
        (tmp_path / "root").mkdir(exist_ok=True)
        code = f"import os, sys; from pathlib import Path; from iotwin.common import commit, tensor_file; {change}\n"
        code += "from tests.common.committing import run; run(Path(sys.argv[1]), *map(int, sys.argv[2:]))"
        if not any((tmp_path / "root").iterdir()):
            command = [sys.executable, "-m", "tests.common.committing", tmp_path / "root", "1", "1", "2"]
            subprocess.run(command, check=True, cwd=ROOT)
        return recorded(tmp_path, "", tmp_path / "root", 2, 2, 2, code=code)

    return run


# The oracle itself


def test_states_of_an_unsynced_file_that_replaces_another():
    write, rename = Op("write", 2, 0, b"abcd"), Op("rename", 2, place=(0, "new"), target=(0, "old"))
    recording = Recording({0: {"old": 1}, 1: b"1", 2: b""}, [Op("link", 2, place=(0, "new")), write, rename])
    found = [tree for cut, tree in states(recording, 100) if cut == 3]
    contents = [b"abcd", b"", b"ab", bytes(4)]
    assert sorted(found, key=repr) == sorted(
        [{"old": content} for content in contents] + [{"old": b"1", "new": content} for content in contents] + [{"old": b"1"}],
        key=repr,
    )
    synced = Recording(recording.initial, [*recording.ops[:2], Op("fsync", 2), rename])
    assert [tree["old"] for cut, tree in states(synced, 100) if cut == 4] == [b"abcd", b"1", b"1"]
    durable = Recording(recording.initial, [*synced.ops, Op("fsync", 0)])
    assert [tree for cut, tree in states(durable, 100) if cut == 5] == [{"old": b"abcd"}]


@needs_strace
def test_the_recording_ends_in_what_is_on_disk(tmp_path, committed):
    recording = committed()
    [tree] = [tree for _, tree in states(recording, 1000, first=len(recording.ops)) if "step-1.gone" not in str(tree)][:1]
    root = tmp_path / "root"
    there = {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}
    assert tree == there


# Ours


@needs_strace
def test_every_state_of_a_commit_loads_what_was_committed(committed):
    recording = committed()
    judged = judge(recording, load_store, 128, before=1)
    assert judged.states > 4 * len(recording.ops)  # the number depends on how the calls of the two ranks fall between one another
    assert judged == Judged(judged.states)


@needs_strace
def test_every_state_of_a_commit_holds_a_file_that_a_user_put_into_the_old_checkpoint(tmp_path, committed):
    committed()
    [old] = (tmp_path / "root").glob("step-*")
    (old / "notes.txt").write_text("mine")

    def load(directory):
        assert [path.read_text() for path in directory.glob("step-*/notes.txt")] == ["mine"]
        return load_store(directory)

    recording = recorded(tmp_path, "tests.common.committing", tmp_path / "root", 3, 3, 2)
    judged = judge(recording, load, 24, before=2)
    assert judged == Judged(judged.states) and judged.states > len(recording.ops)


@needs_strace
@pytest.mark.parametrize(
    "change",
    [
        "commit.fsync_directory = lambda directory: None",
        "tensor_file.os = type('os', (), {**vars(os), 'fsync': lambda descriptor: None})",
        "store = commit.Store; first = store._begin; store._begin = lambda self, *rest: (commit._remove("
        "commit.look(self.directory / 'step-1')), first(self, *rest))[1]",
    ],
    ids=["no fsync of folders", "no fsync of files", "the old one goes first"],
)
def test_a_commit_that_leaves_something_out_is_found_out(committed, change):
    judged = judge(committed(change), load_store, 24, before=1)
    assert judged.lost > 0


# Others', which must be found wanting, or the oracle is blind


@needs_strace
@needs_torch
def test_torch_save_in_place_can_lose_both_checkpoints(tmp_path):
    from tests.common.saving import in_place, load_torch

    root = tmp_path / "root"
    root.mkdir()
    in_place(root, 1)
    recording = recorded(tmp_path, "tests.common.saving", "in_place", root, 2)
    assert load_torch(root) == 2
    judged = judge(recording, load_torch, 12, before=1)
    assert judged.lost > 0


@needs_strace
@needs_torch
def test_dcp_has_returned_before_its_checkpoint_is_durable(tmp_path):
    from tests.common.saving import load_dcp

    (tmp_path / "root").mkdir()
    recording = recorded(tmp_path, "tests.common.saving", "dcp", tmp_path / "root", 2)
    assert load_dcp(tmp_path / "root", 2) == 2
    judged = judge(recording, lambda directory: load_dcp(directory, 2), 40, before=0, only_after=True)
    assert judged.lost > 0
