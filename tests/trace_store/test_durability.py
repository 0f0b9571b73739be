"""What a loss of power leaves of a traced job's checkpoints: told from the trace as enumerating the crash states finds it."""

import sys
from pathlib import Path

import pytest

from iotwin.common.errors import IotwinError
from iotwin.trace_store.figures.durability import audit, judged
from iotwin.trace_store.figures.saved_files import saved_files
from iotwin.trace_store.reader import Trace
from tests.benchmark.strace import needs_strace
from tests.common.crash_states import marked, record, states
from tests.conftest import ROOT, run_iotwin
from tests.synthetic import Job, write_job

BYTES = 70_000
# Saves steps 1 to 3 in a folder, as its words say; what it has returned from it says by looking for a file.
SAVE = f"""
import os, sys
folder, words = sys.argv[1], sys.argv[2].split()
def sync(path):
    descriptor = os.open(path, os.O_RDONLY); os.fsync(descriptor); os.close(descriptor)
def name(step):
    return folder + (f"/state-{{step}}.pt" if "numbered" in words else "/state.pt")
for step in (1, 2, 3):
    if "removed-first" in words and step > 1:
        os.unlink(name(step - 1))
    path = folder + "/state.partial" if "renamed" in words else name(step)
    with open(path, "wb", buffering=0) as file:
        if "early" in words: os.fsync(file.fileno())
        file.write(bytes([step]) * {BYTES // 2})
        file.write(bytes([step]) * {BYTES // 2})
        if "fsync" in words: os.fsync(file.fileno())
    if "renamed" in words: os.rename(path, name(step))
    if "folder" in words: sync(folder)
    if "removed" in words and step > 1:
        os.unlink(name(step - 1))
    os.access(f"/committed-{{step}}", os.F_OK)
"""
# What to do, whether that is safe, and what is missing of the last checkpoint.
WAYS = {
    "in place": ("", False, ["fsync of state.pt after its last write", "fsync of folder F after the creation of state.pt"]),
    "in place, synced": ("fsync folder", False, []),
    "early": ("early folder", False, ["fsync of state.pt after its last write (the last one came before it)"]),
    "renamed": ("renamed folder", False, ["fsync of state.pt after its last write"]),
    "renamed, file synced": ("renamed fsync", False, ["fsync of folder F after the rename to state.pt"]),
    "renamed, synced": ("renamed fsync folder", True, []),
    "numbered": ("numbered fsync folder", True, []),
    "numbered, one stays": ("numbered fsync folder removed", True, []),
    "numbered, old goes first": ("numbered fsync folder removed-first", False, []),
    "numbered, unsynced, one stays": ("numbered removed folder", False, ["fsync of state-3.pt after its last write"]),
}
LOST = {
    "in place": {"state.pt was overwritten in place before another was durable"},
    "in place, synced": {"state.pt was overwritten in place before another was durable"},
    "early": {"state.pt was overwritten in place before another was durable"},
    "renamed": {"state.pt was replaced before another was durable"},
    "renamed, file synced": {"state.pt was replaced before another was durable"},
    "numbered, old goes first": {f"state-{step}.pt was removed before another was durable" for step in (1, 2)},
    "numbered, unsynced, one stays": {f"state-{step}.pt was removed before another was durable" for step in (1, 2)},
}


def _loads(tree):
    """Whether any state of a crash state is whole."""
    return any(
        name.endswith(".pt") and content is not None and len(content) == BYTES and len(set(content)) == 1 and content[0]
        for name, content in tree.items()
    )


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """One trace of all ways, each in a folder of its own."""
    base = tmp_path_factory.mktemp("ways")
    for name in WAYS:
        (base / name).mkdir()
    (base / "save.py").write_text(SAVE)
    commands = [f"{sys.executable} -S {base}/save.py '{base / name}' '{words}'" for name, (words, *_) in WAYS.items()]
    run_iotwin("trace", "-o", base / "ways.trace", "--backend", "strace", "--", "sh", "-c", ";".join(commands))
    trace = Trace(base / "ways.trace")
    return base, trace, saved_files(trace)


@needs_strace
@pytest.mark.parametrize("name", WAYS)
def test_a_trace_tells_what_the_crash_states_have(tmp_path, traced, name):
    words, safe, missing = WAYS[name]
    base, trace, files = traced
    folder = base / name
    own = [file for file in files if Path(file.path).parent == folder]
    found = judged(own, trace.manifest.start_ns, trace.manifest.end_ns)
    (tmp_path / "root").mkdir()
    (tmp_path / "recording").mkdir()
    recording = record(
        [sys.executable, "-S", "-c", SAVE, str(tmp_path / "root"), words], tmp_path / "root", tmp_path / "recording", cwd=ROOT
    )
    kept = all(_loads(tree) for cut, tree in states(recording, 200) if marked(recording, cut))
    assert found["safe"] == kept == safe
    assert [entry["size_bytes"] for entry in found["checkpoints"]] == [BYTES] * 3
    assert found["checkpoints"][-1]["missing"] == sorted(line.replace("F", str(folder)) for line in missing)
    assert {line for entry in found["checkpoints"] for line in entry["lost"]} == LOST.get(name, set())
    assert [entry["durable_s"] is not None for entry in found["checkpoints"]] == [not missing] * 3


@needs_strace
@pytest.mark.parametrize(
    ("change", "safe"),
    [
        ("pass", True),
        ("commit.fsync_directory = lambda directory: None", False),
        ("tensor_file.os = type('os', (), {**vars(os), 'fsync': lambda descriptor: None})", False),
    ],
    ids=["ours", "no fsync of folders", "no fsync of files"],
)
def test_folders_that_are_renamed_and_set_aside(tmp_path, change, safe):
    code = f"import os, sys; from pathlib import Path; from iotwin.common import commit, tensor_file; {change}\n"
    code += "from tests.common import committing; committing.SIZES = (30_000,)\n"
    code += "committing.run(Path(sys.argv[1]), 1, 3, 2)"
    command = [sys.executable, "-c", code, tmp_path / "store"]
    done = run_iotwin("trace", "-o", tmp_path / "t", "--backend", "strace", "--", *command)
    assert done.returncode == 0, done.stderr
    found = audit(Trace(tmp_path / "t"))
    assert [Path(entry["name"]).name for entry in found["checkpoints"]] == ["step-1", "step-2", "step-3"]
    assert [entry["files"] for entry in found["checkpoints"]] == [5] * 3
    assert found["safe"] == safe and all(bool(entry["missing"]) != safe for entry in found["checkpoints"])


def test_a_trace_without_checkpoints_is_refused(tmp_path):
    trace = Trace(write_job(tmp_path / "t", Job(checkpoint_every=0, epochs=1)))
    with pytest.raises(IotwinError, match="wrote no checkpoint"):
        audit(trace)


def test_the_checkpoints_of_a_synthetic_job_lack_their_folder(tmp_path):
    found = audit(Trace(write_job(tmp_path / "t", Job(epochs=3))))
    assert not found["safe"] and len(found["checkpoints"]) == 3
    assert found["checkpoints"][1]["missing"] == ["fsync of folder /data/out after the creation of epoch_2.pt"]
    assert found["checkpoints"][1]["exposed_s"] == pytest.approx(
        found["checkpoints"][2]["begun_s"] - found["checkpoints"][1]["begun_s"]
    )
