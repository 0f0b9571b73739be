"""The twin command on a real traced run: made, compared, packed without names, run from the archive."""

import json
import re
import shutil
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.compute as pc
import pytest

from iotwin import workload_yaml as workload
from iotwin.datagen.datasets.recorded import read_recipe, write_recipe
from iotwin.loops import twin_from_trace
from iotwin.loops.twin_from_trace import make_twin
from iotwin.main import main
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount, v1_cgroup_of
from iotwin.workload_yaml.recording import read_recording
from tests.conftest import ROOT, nothing_can_trace, run_iotwin
from tests.processes import call, one_line, press_ctrl_c, start, wait_for
from tests.synthetic import Job, crowd, write_job

SECRETS = ("acme", "hush", "confidential")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two traced runs of a small job (an emulated one), whose owner has given telling names to everything."""
    if reason := nothing_can_trace():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("acme")
    (folder / "confidential").mkdir()
    rng = np.random.default_rng(1)
    for index in range(12):
        np.save(folder / "confidential" / f"hush_{index:03d}.npy", rng.random(20_000 + 500 * index, dtype=np.float32))
    files = [f"hush_{index:03d}.npy" for index in range(12)]
    config = workload.Config(
        workflow=workload.Workflow(evaluation=True, checkpoint=True),
        dataset=workload.Dataset(data_folder=str(folder / "confidential"), format="npy"),
        reader=workload.Reader(batch_size=2, read_threads=2, sample_shuffle="seed", preprocess_time=0.005),
        train=workload.Train(epochs=2, computation_time=0.03),
        checkpoint=workload.Checkpoint(checkpoint_folder=str(folder / "output")),
        output=workload.Output(folder=str(folder / "output")),
        twin=workload.Twin(
            train_files=files[:10],
            eval_files=files[10:],
            checkpoint=workload.TwinCheckpoint(
                files=[workload.CheckpointFile(name="acme_{epoch}.pt", write_sizes=[(5000, 2)], fsync=True)]
            ),
        ),
    )
    workload.dump(config, folder / "job.yaml")
    command = [sys.executable, "-m", "iotwin", "emulate", str(folder / "job.yaml")]
    traces = [folder / f"{name}.trace" for name in ("first", "second")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        for trace in traces:
            assert trace_command(command, trace, TraceOptions(workload="acme net", forward_output=False)).exit_status == 0
    return traces


@pytest.fixture(scope="module")
def made(job: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the finished twin."""
    directory = tmp_path_factory.mktemp("made") / "twin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        make_twin(job, directory, force=False)
    return directory


def test_the_twins_run_is_kept_and_its_scores_are_in_the_summary(made):
    document = json.loads((made / "summary.json").read_text())
    (record,) = document["rounds"]
    similarity = json.loads((made / "round-1" / "similarity.json").read_text())
    assert record["overall"] == document["overall"] == similarity["overall"] and document["best_round"] == 1
    assert record["dimensions"] == similarity["dimensions"]
    assert (made / "twin.yaml").read_bytes() == (made / "round-1" / "twin.yaml").read_bytes()
    for name in ("volume", "request_size", "operation_mix", "files", "checkpoint"):
        assert record["dimensions"][name] > 0.95
    assert len(document["held_out"]) == 1 and document["noise_floor"] is not None
    assert document["edits"].startswith("batch size 2, 2 loaders, 2 epochs, 10 samples, 1 rank,")


@pytest.mark.parametrize("command", ["twin", "fit"])
def test_options_of_earlier_versions_have_no_effect_but_a_note(job, command, tmp_path, monkeypatch):
    monkeypatch.setattr("iotwin.loops.twin_from_trace.run_traced", lambda command, path, *_, **__: shutil.copytree(job[1], path))
    options = {"--kind": "structured"} | ({"--rounds": "0"} if command == "twin" else {})
    done = call(command, job[0], "-o", tmp_path / "made.yaml", *(word for option in options.items() for word in option))
    assert done.returncode == 0
    for option in options:
        assert f"{option} has no effect any more" in done.stderr
    path = tmp_path / "made.yaml"
    assert workload.load(path / "twin.yaml" if command == "twin" else path).twin.recorded is not None


def test_what_makes_the_verdict_weak_is_in_the_summary_and_below_the_verdict(job, tmp_path, monkeypatch, capsys):
    def run(command, path, *_, **__):
        crowd(write_job(path, Job(files=3, epochs=1)))

    monkeypatch.setattr("iotwin.loops.twin_from_trace.run_traced", run)
    assert main(["twin", *map(str, job), "-o", str(tmp_path / "twin")]) == 0
    summary = json.loads((tmp_path / "twin" / "summary.json").read_text())
    (caveat,) = (each for each in summary["caveats"] if each.startswith("its twin's machine was crowded"))
    assert any(each.startswith("the twin's machine was crowded") for each in summary["held_out"][0]["caveats"])
    assert not any(re.search(r"\b[AB]\b", each["verdict"]) for each in (summary, *summary["held_out"]))
    lines = capsys.readouterr().out.splitlines()
    assert f"caveat: {caveat}" in lines[lines.index(summary["verdict"]) :]
    assert main(["twin", "pack", str(tmp_path / "twin"), "-o", str(tmp_path / "sent.twin"), "--quiet"]) == 0
    with zipfile.ZipFile(tmp_path / "sent.twin") as archive:
        assert json.loads(archive.read("summary.json"))["caveats"] == summary["caveats"]


@pytest.mark.parametrize("summary", ["{}", "[]", "[1", '{"source": 3}', '{"source": {"counts": []}}'])
def test_a_summary_that_is_no_finished_twins_is_refused_in_one_line(made, tmp_path, summary):
    directory = shutil.copytree(made, tmp_path / "twin", ignore=shutil.ignore_patterns("round-*", "data"))
    (directory / "summary.json").write_text(summary)
    for arguments in (("respond", directory, "-o", tmp_path / "out"), ("pack", directory, "-o", tmp_path / "sent.twin")):
        assert re.search(r"summary\.json(: no JSON| is not that of a finished twin)", one_line(call("twin", *arguments)))


def test_a_twin_that_replaces_another_has_data_of_its_own_job(job, tmp_path, monkeypatch):
    monkeypatch.setattr("iotwin.loops.twin_from_trace.run_traced", lambda command, path, *_, **__: shutil.copytree(job[1], path))
    make_twin([write_job(tmp_path / "other.trace", Job(files=3, epochs=1))], tmp_path / "twin", force=False)
    make_twin(job, tmp_path / "twin", force=True)
    assert _files_of(tmp_path / "twin" / "data").keys() == {"job.yaml", *(f"confidential/hush_{n:03d}.npy" for n in range(12))}


def test_the_stand_in_data_has_the_names_and_sizes_of_the_original(made, job):
    original, stand_in = _files_of(job[0].parent / "confidential"), _files_of(made / "data")
    assert stand_in.pop("job.yaml") == (job[0].parent / "job.yaml").stat().st_size  # which the job also reads
    assert stand_in == {f"confidential/{name}": size for name, size in original.items()}
    name = "confidential/hush_000.npy"
    assert (made / "data" / name).read_bytes() != (job[0].parent / name).read_bytes()


def _files_of(folder: Path) -> dict[str, int]:
    """Return the sizes of the files below a folder, by name; without the manifest of a data set that iotwin made."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path != folder / "manifest.json"
    }


def test_a_job_that_only_writes_has_a_twin_that_packs_and_runs(tmp_path, monkeypatch):
    if reason := nothing_can_trace():
        pytest.skip(reason)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # The first sleep is as long as the twin may be late with its first write, which otherwise would be nearer to the second.
    program = (
        "import time\ntime.sleep(0.5)\n"
        f"for i in range(3):\n open('{tmp_path}/w%d.ckpt' % i, 'wb').write(bytes(500_000))\n time.sleep(0.05)"
    )
    options = TraceOptions(forward_output=False)
    assert trace_command([sys.executable, "-S", "-c", program], tmp_path / "w.trace", options).exit_status == 0
    document = make_twin([tmp_path / "w.trace"], tmp_path / "twin", force=False, clock="virtual")
    ran = Trace(tmp_path / "twin" / "round-1" / "twin.trace")
    assert ran.table("clock")["skipped_ns"].to_pylist()[-1] > 0
    writes = ran.events_frame(["start_ns"], pc.field("result") == 500_000)
    assert np.ptp(writes["start_ns"]) >= 100_000_000  # two sleeps of the job lie between the writes: skipped, and traced
    assert workload.load(tmp_path / "twin" / "twin.yaml").twin.clock == "real"
    assert document["edits"].startswith("none") and document["rounds"][0]["dimensions"]["volume"] > 0.95
    assert run_iotwin("twin", "pack", tmp_path / "twin", "-o", tmp_path / "w.twin").returncode == 0
    ran = run_iotwin("twin", "run", tmp_path / "w.twin", "-o", tmp_path / "ran")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.root
def test_mapped_data_stay_in_the_page_cache_while_the_twin_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kept: list[tuple[str, int]] = []

    @contextmanager
    def keeping(paths):
        kept.extend((path.name, path.stat().st_size) for path in paths)
        yield
        assert (tmp_path / "twin" / "round-1" / "twin.trace").exists()

    monkeypatch.setattr(twin_from_trace, "kept_cached", keeping)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "tokens.bin").write_bytes(bytes(8 << 20))
    program = (
        f"import mmap, time\nf = open('{tmp_path}/d/tokens.bin', 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "for i in range(0, len(m), 1 << 18):\n m[i]\n time.sleep(0.001)"
    )
    command = [sys.executable, "-S", "-c", program]
    for detail, expected in (("data", []), ("data,mmap", [("tokens.bin", 8 << 20)])):
        options = TraceOptions(forward_output=False, detail=tuple(detail.split(",")))
        kept.clear()
        assert trace_command(command, tmp_path / f"{detail}.trace", options).exit_status == 0
        shutil.rmtree(tmp_path / "twin", ignore_errors=True)
        make_twin([tmp_path / f"{detail}.trace"], tmp_path / "twin", force=False)
        assert kept == expected


def test_an_archive_tells_no_name_and_no_path(made, tmp_path, capsys):
    assert main(["twin", "pack", str(made), "-o", str(tmp_path / "sent.twin")]) == 0
    with zipfile.ZipFile(tmp_path / "sent.twin") as archive:
        assert sorted(archive.namelist()) == ["dataset.csv", "summary.json", "twin.recording", "twin.yaml"]
        contents = b"".join(archive.read(name) for name in archive.namelist() if name != "twin.recording")
        recording = read_recording(Path(archive.extract("twin.recording", tmp_path)))
    contents = (contents + msgspec.json.encode(recording.header)).lower()  # the rest of a recording is numbers
    for secret in (
        *SECRETS,
        str(made.parent),
        json.loads((made / "round-1/twin.trace/manifest.json").read_text())["host"]["hostname"],
    ):
        assert secret.lower().encode() not in contents
    sizes = [size for _, size in read_recipe(made / "dataset.csv").files]
    with zipfile.ZipFile(tmp_path / "sent.twin") as archive:
        archive.extract("dataset.csv", tmp_path)
    assert [size for _, size in read_recipe(tmp_path / "dataset.csv").files] == sizes


def test_names_stay_when_they_may(made, tmp_path):
    assert main(["twin", "pack", str(made), "-o", str(tmp_path / "sent.twin"), "--keep-names", "--quiet"]) == 0
    with zipfile.ZipFile(tmp_path / "sent.twin") as archive:
        assert b"hush_000.npy" in archive.read("dataset.csv")


def test_a_packed_twin_runs_elsewhere(made, tmp_path):
    assert main(["twin", "pack", str(made), "-o", str(tmp_path / "sent.twin"), "--quiet"]) == 0
    done = run_iotwin("twin", "run", tmp_path / "sent.twin", "-o", tmp_path / "here", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["action"] == "run"
    assert len(list((tmp_path / "here" / "data").rglob("*.npy"))) == 12
    assert (tmp_path / "here" / "output" / "summary.json").exists()
    assert sorted(path.stat().st_size for path in (tmp_path / "here" / "output").rglob("*.pt")) == [10_000, 10_000]


def test_an_archive_cannot_write_outside_its_directory(tmp_path):
    write_recipe(tmp_path / "dataset.csv", [("../escaped.npy", 1000)])
    with zipfile.ZipFile(tmp_path / "evil.twin", "w") as archive:
        archive.writestr("twin.yaml", "dataset: {data_folder: data}\n")
        archive.write(tmp_path / "dataset.csv", "dataset.csv")
        archive.writestr("summary.json", "{}")
        archive.writestr("../../outside", "x")
    done = run_iotwin("twin", "run", tmp_path / "evil.twin", "-o", tmp_path / "deep" / "here")
    assert done.returncode == 2 and "does not stay within" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "deep" / "escaped.npy").exists() and not (tmp_path / "outside").exists()


def test_mistakes_end_in_one_line(made, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    (tmp_path / "no.twin").write_text("not a zip")
    source = made / "round-1" / "twin.trace"
    for arguments, status, says in (
        (("twin", source, "-o", tmp_path / "other"), 2, "holds other files"),
        (("twin", source, "-o", made), 2, "--force"),
        (("twin", tmp_path / "none.trace", "-o", tmp_path / "t"), 1, "no such trace"),
        (("twin", "pack", tmp_path / "other", "-o", tmp_path / "x.twin"), 2, "no finished twin"),
        (("twin", "pack", "-o", tmp_path / "x.twin"), 2, "required: DIR"),
        (("twin", "run", tmp_path / "no.twin", "-o", tmp_path / "t"), 1, "not a whole twin archive"),
        (("twin", "run", tmp_path / "absent.twin", "-o", tmp_path / "t"), 2, "no such archive"),
        (("twin", "respond", tmp_path / "other", "-o", tmp_path / "t"), 2, "holds no twin"),
        (("twin", "respond", made, "-o", tmp_path / "t", "--runs", "0"), 2, "--runs: must be at least 1"),
    ):
        done = call(*arguments)
        assert done.returncode == status and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert (tmp_path / "other" / "thesis.tex").read_text() == "mine"


@pytest.fixture
def command(job: list[Path]) -> list[str]:
    return [sys.executable, "-m", "iotwin", "emulate", str(job[0].parent / "job.yaml")]


def _limited_cgroups(pid: int | str = "*") -> list[Path]:
    """The cgroups that processes, or one, have made for their runs' limits."""
    places = {place for place in (v1_cgroup_of("blkio"), v1_cgroup_of("memory"), cgroup2_mount()) if place}
    return [path for place in places for path in place.glob(f"iotwin-{pid}-*")]


@pytest.mark.root
def test_a_twin_and_its_job_run_under_the_same_changes_of_storage(made, command, tmp_path):
    _skip_where_nothing_can_be_limited(made)
    changes = ("--change", "cold", "--change", "read=200MB,requests=5000,cache=64MiB")
    done = run_iotwin("twin", "respond", made, "-o", tmp_path / "resp", *changes, "--json", "--job", *command)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["job"] == command and json.loads((tmp_path / "resp" / "response.json").read_text())["runs"] == 1
    assert [row["change"] for row in document["changes"]] == ["cached", "cold", "read=200MB,requests=5000,cache=64MiB"]
    for row in document["changes"]:
        assert row["not_in_force"] == []
        assert row["of"] == "epoch" and row["ratio"] == pytest.approx(row["twin"]["seconds"] / row["job"]["seconds"])
        for side in ("job", "twin"):
            epochs = row[side]["epochs_s"][0]
            assert len(epochs) == 2 and row[side]["seconds"] == pytest.approx(sum(epochs) / 2)
            assert row[side]["first_epoch_s"] == epochs[0] and row[side]["reading_s"][0] > 0
    assert {path.name for path in (tmp_path / "resp").glob("*.trace")} >= {"job-cold-1.trace", "twin-cached-1.trace"}
    assert [path for path in _limited_cgroups() if not Path(f"/proc/{path.name.split('-')[1]}").exists()] == []
    page = run_iotwin(
        "report", made / "round-1" / "twin.trace", "-o", tmp_path / "r.html", "--response", tmp_path / "resp" / "response.json"
    )
    assert page.returncode == 0 and "requests=5000" in (tmp_path / "r.html").read_text()


@pytest.mark.root
def test_a_job_that_leaves_its_limits_is_found_out(made, command, tmp_path):
    _skip_where_nothing_can_be_limited(made)
    blkio = v1_cgroup_of("blkio")
    if blkio is None:
        pytest.skip("reads are capped by io.max here, in the cgroup by which the job is traced")
    job = ["sh", "-c", f'echo $$ > {blkio}/cgroup.procs; exec "$@"', "sh", *command]
    done = run_iotwin("twin", "respond", made, "-o", tmp_path / "resp", "--change", "cold", "--json", "--job", *job)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["changes"][1:]
    (text,) = row["not_in_force"]
    start, _, rest = text.partition(" of the ")
    assert start.startswith("job: its reads were not cold: the disks gave it ") and rest.startswith("1.0") and "MiB" in rest
    assert start.endswith((" B", " KiB"))  # a page of the shell, at most, from before it left
    assert row["ratio"] is None


def _skip_where_nothing_can_be_limited(made: Path) -> None:
    from iotwin.common.errors import IotwinError
    from iotwin.tracing_tools.targets.storage_limits import MEMORY, READS, device_below, reason_against

    try:
        device_below(made)
        reason = reason_against(READS) or reason_against(MEMORY)
    except IotwinError as error:
        reason = str(error)
    if reason:
        pytest.skip(reason)


@pytest.mark.root
def test_an_interrupt_undoes_the_limits(made, tmp_path):
    _skip_where_nothing_can_be_limited(made)
    running = start("twin", "respond", made, "-o", tmp_path / "resp", "--change", "read=10kB", "--job", "sleep", "1000")
    wait_for(lambda: _limited_cgroups(running.pid) or running.poll() is not None, "the limits")
    result = press_ctrl_c(running)
    assert result.returncode == 130 and result.stderr.splitlines()[-1] == "iotwin twin respond: interrupted"
    assert not _limited_cgroups(running.pid)
