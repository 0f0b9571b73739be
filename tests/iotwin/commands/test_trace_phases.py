"""iotwin trace --phases: scripts that log nothing get labels, and make the same calls as without."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT, run_iotwin
from tests.processes import call
from tests.workloads.detrain.test_phases import TRAINING, write

FILES, EPOCHS, LEAST_S = 6, 2, 0.002
READING = f"""
from pathlib import Path

def read(files):
    for file in files:
        yield file.read_bytes()

files = sorted(Path("data").iterdir())
for epoch in range({EPOCHS}):
    for x in read(files):
        train(x)
        time.sleep({LEAST_S})
    print("epoch", epoch, "done")
    Path("model.ckpt").write_bytes(bytes(1 << 17))
"""
DONE = "".join(f"epoch {epoch} done\n" for epoch in range(EPOCHS))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a script and the files that it reads, which is the current one."""
    write(tmp_path, TRAINING + READING)
    for number in range(FILES):
        write(tmp_path, "x" * 5000, f"data/{number}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trace(folder: Path, *words: str, status: int = 0, name: str = "t") -> Trace:
    done = call("trace", "-o", folder / name, "--detail", "data,metadata", *words)
    assert done.returncode == status, done.stderr
    return Trace(folder / name)


def calls(of: Trace, folder: Path) -> dict[tuple[str, str], int]:
    """Return the number of calls by operation and file, except those by which Python reads its program, and prints.

    Python resolves the program's path, and asks for its folder.
    """
    events = of.events_frame().merge(of.files()[["file_id", "path"]], on="file_id", how="left").fillna({"path": "none"})
    path = events["path"].astype(str).str.replace(f"{folder}/{of.path.name}/", "t/")
    # The program's descriptor is the first free one from 200 on: a test process may hold some of these.
    program = path.isin([str(folder / "train.py"), "/"]) | path.str.fullmatch(r"/memfd:.*|/proc/self/fd/2\d\d")
    return events.assign(path=path)[~program & (path != "t/logs/stdout")].groupby(["op", "path"], observed=True).size().to_dict()


@pytest.mark.root
def test_the_job_makes_the_same_calls_but_for_what_it_prints(folder):
    bare = trace(folder, "--", sys.executable, "train.py", name="bare")
    labelled = trace(folder, "--phases", "auto", "--", sys.executable, "train.py", name="labelled")
    assert calls(labelled, folder) == calls(bare, folder)
    assert calls(bare, folder)["read", str(folder / "data" / "0")] == 2 * EPOCHS
    assert [(of.path / "logs" / "stdout").read_text().count(":::MLLOG") for of in (bare, labelled)] == [
        0,
        2 * EPOCHS * (FILES + 1),
    ]
    # Python opens a program once more than a script, to learn that it is none; a step costs one write.
    counts = [of.events_frame()["op"].astype(str).value_counts() for of in (bare, labelled)]
    more = (counts[1] - counts[0])[["openat", "close", "readlink", "write"]]
    assert more.to_dict() == {"openat": 1, "close": 1, "readlink": 0, "write": EPOCHS * (FILES + 2)}
    files = labelled.files()
    assert files.loc[files["kind"] == "dataset", "path"].tolist() == [str(folder / "data" / str(n)) for n in range(FILES)]


@pytest.mark.root
def test_phases_notes_and_command_of_a_labelled_trace(folder):
    found = trace(folder, "--phases", "auto", "--", sys.executable, "train.py")
    lines = (folder / "train.py").read_text().splitlines()
    epoch, batch = (lines.index(text) + 1 for text in (f"for epoch in range({EPOCHS}):", "    for x in read(files):"))
    [note] = [note for note in found.manifest.notes if "phases" in note]
    assert f"epochs by {folder}/train.py:{epoch}, steps by {folder}/train.py:{batch}" in note
    assert found.manifest.target.command == [sys.executable, "train.py"]
    phases = found.phases()
    steps = phases[phases["phase"] == "step"]
    assert phases["phase"].astype(str).value_counts().to_dict() == {"epoch": EPOCHS, "step": EPOCHS * FILES}
    assert steps["step"].tolist() == [*range(1, FILES + 1)] * EPOCHS and steps["epoch"].tolist() == [1] * FILES + [2] * FILES
    assert (steps["end_ns"] - steps["start_ns"] >= LEAST_S * 1e9).all()
    reads = found.events_frame().merge(found.files()[["file_id", "path"]], on="file_id")
    reads = reads[reads["path"].astype(str).str.contains("/data/") & (reads["op"] == "read")]
    assert not any(((reads["start_ns"] > row.start_ns) & (reads["start_ns"] < row.end_ns)).any() for row in steps.itertuples())


@pytest.mark.root
@pytest.mark.parametrize("words", [[], ["--phases", "logged"]])
def test_by_default_nothing_is_labelled(folder, words):
    found = trace(folder, *words, "--", sys.executable, "train.py")
    assert found.phases().empty and (found.path / "logs" / "stdout").read_text() == DONE


@pytest.mark.root
def test_logged_phases_may_be_left_out(folder):
    line = ':::MLLOG {"key": "epoch", "event_type": "INTERVAL_%s", "time_ns": %d}'
    script = f"import time\nfor edge in ('START', 'END'):\n    print({line!r} % (edge, time.time_ns()), flush=True)\n"
    write(folder, script, "logs.py")
    assert len(trace(folder, "--", sys.executable, "logs.py", name="logged").phases()) == 1
    found = trace(folder, "--phases", "none", "--", sys.executable, "logs.py", name="none")
    assert found.phases().empty and any("--phases none" in note for note in found.manifest.notes)
    kept = trace(folder, "--phases", "auto", "--", sys.executable, "logs.py", name="auto")
    assert len(kept.phases()) == 1 and any("labels nothing" in note for note in kept.manifest.notes)


@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--", "sh", "-c", "exit 3"], "sh is not Python"),
        (["--", sys.executable, "-c", "exit(3)"], "given by -c"),
        (["--", sys.executable, "other.py"], "no training loop"),
        (["--all", "--", sys.executable, "other.py"], "starts itself"),
    ],
    ids=["sh", "-c", "no loop", "--all"],
)
def test_what_cannot_be_labelled_is_traced_as_it_is(folder, words, reason):
    write(folder, "import sys\nsys.exit(3)\n", "other.py")
    found = trace(folder, "--phases", "auto", *words, status=3)
    assert any("labels nothing" in note and reason in note for note in found.manifest.notes)


@pytest.mark.root
def test_each_of_several_jobs_may_be_labelled(folder):
    write(folder, f"first:\n  command: [{sys.executable}, train.py]\nsecond:\n  command: [cat, train.py]\n", "jobs.yaml")
    done = run_iotwin("trace", "-o", folder / "jobs", "--jobs", folder / "jobs.yaml", "--phases", "auto", "--json", cwd=folder)
    jobs = json.loads(done.stdout)["jobs"]
    assert any("are labelled" in note for note in jobs["first"]["notes"])
    assert any("cat is not Python" in note for note in jobs["second"]["notes"])
    assert len(Trace(folder / "jobs" / "first.trace").phases()) == EPOCHS * (FILES + 1)


@pytest.mark.root
def test_under_sudo_the_script_is_read_as_the_user(open_path):
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python that every user may run")
    sudo = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_UID": "65534", "SUDO_GID": "65534"}
    write(open_path, TRAINING + "for epoch in range(2):\n    for x in [1.0]:\n        train(x)\n", "train.py").chmod(0o644)
    write(open_path, (open_path / "train.py").read_text(), "secret.py").chmod(0o600)
    words = ["trace", "--phases", "auto", "--json", "-o"]
    readable = run_iotwin(*words, open_path / "a", "--", python, open_path / "train.py", env=sudo)
    notes = json.loads(readable.stdout)["notes"]
    assert any("are labelled" in note or "iotwin runs on" in note for note in notes), notes
    secret = run_iotwin(*words, open_path / "b", "--", python, open_path / "secret.py", env=sudo)
    assert any("labels nothing" in note and "ermission denied" in note for note in json.loads(secret.stdout)["notes"])
