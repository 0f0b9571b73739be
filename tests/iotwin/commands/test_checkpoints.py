"""iotwin checkpoints: what a store holds, as the document says it and as a person sees it."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.common.stores import fill
from tests.processes import call
from tests.synthetic import Job, write_job

KEYS = {"name", "step", "epoch", "position", "world_size", "size_bytes", "files", "whole", "reason"}


def document(*arguments, status=0):
    done = call("checkpoints", *arguments, "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_list_and_verify_tell_each_checkpoint(tmp_path):
    fill(tmp_path, 5, 10, 15)
    (tmp_path / "step-15" / "manifest.json").write_text("{")
    raw = tmp_path / "step-10" / "rank-0.raw"
    raw.write_bytes(bytes(raw.stat().st_size))
    listed = document("list", tmp_path)
    assert listed["directory"] == str(tmp_path) and listed["latest"] == "step-15" and listed["loadable"] == "step-10"
    assert [entry["name"] for entry in listed["checkpoints"]] == ["step-15", "step-10", "step-5"]
    assert [entry["whole"] for entry in listed["checkpoints"]] == [False, True, True]
    assert all(entry.keys() == KEYS for entry in listed["checkpoints"]) and listed["removed"] == []
    last = listed["checkpoints"][-1]
    assert (last["step"], last["epoch"], last["position"], last["world_size"], last["files"]) == (5, 1, 20, 1, 2)
    assert last["size_bytes"] == sum((tmp_path / "step-5" / f"rank-0.{kind}").stat().st_size for kind in ("raw", "json"))
    verified = document("verify", tmp_path)
    assert verified["loadable"] == "step-5"
    assert verified["checkpoints"][1]["reason"] == "rank-0.raw does not have its checksum"
    shown = call("checkpoints", "verify", tmp_path).stdout
    assert "a job resumes from step-5" in shown and "does not have its checksum" in shown and "is no manifest" in shown


def test_prune_keeps_what_it_is_told_and_what_it_cannot_read(tmp_path):
    fill(tmp_path, 1, 2, 3, 4, 5)
    (tmp_path / "step-5" / "rank-0.json").unlink()
    pruned = document("prune", tmp_path, "--keep", "1", "--every", "2")
    assert pruned["removed"] == ["step-3", "step-1"] and pruned["loadable"] == "step-4"
    assert names(tmp_path) == ["LATEST", "step-2", "step-4", "step-5", "store.lock"]


def test_prune_leaves_files_of_a_user_and_says_where_they_are(tmp_path):
    for step in (1, 2, 3):
        fill(tmp_path, step)
    (tmp_path / "step-2" / "notes.txt").write_text("mine")
    pruned = document("prune", tmp_path, "--keep", "1")
    assert pruned["removed"] == ["step-2", "step-1"] and pruned["left"] == ["step-2.gone"]
    assert names(tmp_path) == ["LATEST", "step-2.gone", "step-3", "store.lock"]
    assert [path.name for path in (tmp_path / "step-2.gone").iterdir()] == ["notes.txt"]
    assert [entry["name"] for entry in document("verify", tmp_path)["checkpoints"]] == ["step-3"]
    shown = call("checkpoints", "prune", tmp_path, "--keep", "1").stdout
    assert "step-2.gone holds files that are no part of the removed checkpoint; move them elsewhere" in shown


def test_verify_names_the_file_that_cannot_be_read(tmp_path, monkeypatch):
    fill(tmp_path, 1, 2)
    of_file = os.fstat

    def fails(descriptor):
        if "step-2/rank-0.json" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.EIO, "Input/output error")
        return of_file(descriptor)

    monkeypatch.setattr(os, "fstat", fails)
    verified = document("verify", tmp_path)
    assert verified["loadable"] == "step-1"
    assert verified["checkpoints"][0]["reason"] == "rank-0.json: input/output error"


@pytest.mark.parametrize("action", [["list"], ["verify"], ["prune", "--keep", "1"]])
def test_a_directory_without_checkpoints_is_told_and_left(tmp_path, action):
    (tmp_path / "thesis.tex").write_text("years")
    found = document(action[0], tmp_path, *action[1:], status=1)
    assert found["loadable"] is None and found["checkpoints"] == [] and names(tmp_path) == ["thesis.tex"]
    done = call("checkpoints", action[0], tmp_path / "nowhere", *action[1:])
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "nowhere: No such file" in done.stderr


def test_prune_of_nothing_is_refused(tmp_path):
    fill(tmp_path, 1)
    done = call("checkpoints", "prune", tmp_path, "--keep", "0")
    assert done.returncode == 2 and "--keep: must be at least 1" in done.stderr


def test_audit_tells_what_is_missing_and_when_a_loss_of_power_would_have_left_nothing(tmp_path):
    trace = write_job(tmp_path / "run.trace", Job(epochs=3))
    audited = document("audit", trace, status=1)
    assert not audited["safe"] and len(audited["checkpoints"]) == 3
    assert audited["checkpoints"][0]["missing"] == ["fsync of folder /data/out after the creation of epoch_1.pt"]
    shown = call("checkpoints", "audit", trace).stdout
    assert "missing: fsync of folder /data/out after the creation of epoch_1.pt (3 such)" in shown
    assert "a loss of power at 3 of 3 checkpoints could leave none that loads" in shown
    done = call("checkpoints", "audit", write_job(tmp_path / "none", Job(epochs=1, checkpoint_every=0)))
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "wrote no checkpoint" in done.stderr
