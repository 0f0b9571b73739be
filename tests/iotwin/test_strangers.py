"""Foreign twins and foreign directories: no code of theirs runs, nothing of the environment gets into them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from iotwin.datagen.datasets.recorded import write_recipe
from iotwin.workload_yaml.recording import Op, RecordedFile, write_recording
from tests.benchmark.recordings import CREATE, recording, row
from tests.conftest import PATIENCE_S, ROOT, run_iotwin
from tests.processes import call, one_line

EVIL = "from pathlib import Path\nPath({marker!r}).write_text('code of a stranger ran')\n"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def twin(folder: Path, yaml: str, files: list[tuple[str, int]] | None = None) -> Path:
    """An archive with `yaml` as its twin and a small data set."""
    write_recipe(folder / "dataset.csv", files or [(f"f{number}.npy", 1000) for number in range(4)])
    with zipfile.ZipFile(folder / "sent.twin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("twin.yaml", yaml)
        archive.write(folder / "dataset.csv", "dataset.csv")
        archive.writestr("summary.json", "{}")
    return folder / "sent.twin"


@pytest.mark.parametrize(
    "key", ["reader: {data_loader", "reader: {data_loader_classname", "reader: {reader_classname", "reader: {data_loader_sampler",
            "dataset: {format", "workflow: {checkpoint: true}\ncheckpoint: {checkpoint_mechanism_classname"],
)  # fmt: skip
def test_a_sent_twin_imports_nothing_unless_that_is_allowed(tmp_path: Path, key: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "evilmod.py").write_text(EVIL.format(marker=str(tmp_path / "ran")))
    archive = twin(tmp_path, f"{key}: evilmod.Loader}}\n")
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{tmp_path / 'code'}"}
    done = run_iotwin("twin", "run", archive, "-o", tmp_path / "here", env=environment)
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 2 and "--allow-plugins" in one_line(done) and not (tmp_path / "here").exists()
    if os.geteuid() == 0:
        done = run_iotwin("twin", "run", archive, "-o", tmp_path / "here", "--allow-plugins", env=environment)
        assert done.returncode == 2 and "as root" in one_line(done) and not (tmp_path / "ran").exists()


def test_a_sent_twins_code_runs_where_a_user_allows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iotwin.loops.twin_archive import unpack

    (tmp_path / "evilmod.py").write_text(EVIL.format(marker=str(tmp_path / "ran")))
    archive = twin(tmp_path, "dataset: {format: npy}\nreader: {data_loader: evilmod.Loader}\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    unpack(archive, tmp_path / "here", allow_plugins=True)
    assert not (tmp_path / "ran").exists()
    run_iotwin("emulate", tmp_path / "here" / "twin.yaml", env={**ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert (tmp_path / "ran").exists()


def test_a_sent_twin_takes_nothing_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    for number, yaml in enumerate(
        (
            "model: {name: '${oc.env:SECRET}'}\n",
            'model: {name: "\\x24{oc.env:SECRET}"}\n',
            "twin: {assumptions: ['${oc.env:SECRET}']}\n",
            "defaults: [other]\n",
            "train: {computation_time: {type: recorded, file: /etc/passwd}}\n",
        )
    ):
        done = call("twin", "run", twin(tmp_path, yaml), "-o", tmp_path / f"here{number}")
        assert done.returncode == 2 and not (tmp_path / f"here{number}").exists(), yaml
        assert "hunter2" not in one_line(done) and "root:x" not in done.stderr


def test_a_sent_twin_reads_from_its_own_directory_only(tmp_path: Path) -> None:
    yaml = (
        "storage: {storage_type: s3, storage_root: bucket, storage_options: {endpoint_url: 'http://127.0.0.1:9'}}\n"
        "dataset: {data_folder: 's3://bucket/x', format: npy}\nworkflow: {generate_data: true, train: true}\n"
    )
    done = run_iotwin("twin", "run", twin(tmp_path, yaml), "-o", tmp_path / "here")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "here" / "twin.yaml").read_text()
    assert "s3" not in text and "127.0.0.1" not in text and "generate_data" not in text


def test_a_sent_recipe_cannot_fill_the_disk(tmp_path: Path) -> None:
    files = [("a", 2**63 - 1), ("b", 2**63 - 1), ("c", 100)]
    done = call("twin", "run", twin(tmp_path, "dataset: {format: npy}\n", files), "-o", tmp_path / "here")
    assert done.returncode == 2 and "give 0 to" in done.stderr
    assert not (tmp_path / "here" / "data").exists()


def test_a_large_data_set_is_written_only_when_asked_for(tmp_path: Path) -> None:
    archive = twin(tmp_path, "dataset: {format: npy}\n", [("a", 101 << 30), ("b", 5)])
    done = call("twin", "run", archive, "-o", tmp_path / "here")
    assert done.returncode == 2 and "101 GiB" in done.stderr and "--most-data 102GiB" in done.stderr
    assert not (tmp_path / "here").exists()
    small = twin(tmp_path, "dataset: {format: npy}\n", [("a", 3000)])
    assert "--most-data 1GiB" in call("twin", "run", small, "-o", tmp_path / "here", "--most-data", "2kB").stderr


def replayed(folder: Path, rows: list[dict[str, int]], files: list[RecordedFile]) -> Path:
    """An archive of a recorded twin."""
    archive = twin(folder, "twin: {recorded: {file: twin.recording}}\n")
    write_recording(recording(rows, files), folder / "twin.recording")
    with zipfile.ZipFile(archive, "a") as file:
        file.write(folder / "twin.recording", "twin.recording")
    return archive


PEBIBYTE = 1 << 50
WROTE = [row(0, Op.OPEN, flags=CREATE), *(row(0, Op.WRITE, size=1 << 30) for _ in range(200)), row(0, Op.CLOSE)]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda f: twin(f, "workflow: {checkpoint: true}\nmodel: {model_size_bytes: 1000000000000000}\n"), "TiB"),
        (lambda f: replayed(f, [row(0, Op.END)], [RecordedFile("found", size_bytes=4 * PEBIBYTE, written=True)]), "4096 TiB"),
        (lambda f: replayed(f, WROTE, [RecordedFile("written", written=True, made=True)]), "200 GiB"),
    ],
)
def test_what_a_sent_twin_finds_and_writes_counts_as_its_data_do(tmp_path: Path, make, size: str) -> None:
    done = call("twin", "run", make(tmp_path), "-o", tmp_path / "here")
    assert done.returncode == 2 and size in one_line(done) and "--most-data" in one_line(done)
    assert not (tmp_path / "here").exists()


def test_a_file_that_is_written_again_and_again_counts_once(tmp_path: Path) -> None:
    rows = [row(0, Op.OPEN, flags=CREATE), *(row(0, Op.WRITE, offset=0, size=1 << 30) for _ in range(200)), row(0, Op.CLOSE)]
    archive = replayed(tmp_path, rows, [RecordedFile("written", written=True, made=True)])
    assert "output of 1 GiB" in one_line(call("twin", "run", archive, "-o", tmp_path / "here", "--most-data", "1MB"))


def test_a_sent_twin_that_writes_more_than_it_may_is_ended(tmp_path: Path) -> None:
    yaml = (
        "dataset: {format: npy}\nworkflow: {checkpoint: true}\nmodel: {model_size_bytes: 4000000}\n"
        "train: {epochs: 400, computation_time: 0.01}\ncheckpoint: {checkpoint_after_epoch: 1, epochs_between_checkpoints: 1}\n"
    )
    done = run_iotwin("twin", "run", twin(tmp_path, yaml), "-o", tmp_path / "here", "--most-data", "40MB")
    assert done.returncode == 1 and "allow more by --most-data" in done.stderr.splitlines()[-1]
    written = sum(path.stat().st_size for path in (tmp_path / "here" / "output").rglob("*") if path.is_file())
    assert 40e6 < written < 400 * 4e6


def test_an_archive_whose_yaml_is_a_bomb_is_refused(tmp_path: Path) -> None:
    done = run_iotwin("twin", "run", twin(tmp_path, "#" * (255 << 20)), "-o", tmp_path / "here", timeout=PATIENCE_S)
    assert done.returncode == 1 and "too large" in one_line(done)


SHADOWS = ("msgspec", "json", "yaml", "numpy", "common", "benchmark", "workloads", "socket", "pickle", "datagen")


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A directory whose modules have the names of those that we and our libraries import."""
    folder = tmp_path / "shadow"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(EVIL.format(marker=str(tmp_path / f"{name}-ran")))
    return folder


def as_installed(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The `iotwin` program, whose own directory is on its path and not the current one."""
    program = cwd.parent / "iotwin-program"
    program.write_text("import sys\nfrom iotwin.main import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n")
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_no_process_of_ours_imports_from_the_current_directory(shadowed: Path) -> None:
    archive = twin(shadowed.parent, "dataset: {format: npy}\nreader: {read_threads: 2}\n")
    (shadowed / "jobs.yaml").write_text("first: {command: ['true']}\n")
    for command in (
        ("trace", "-o", "jobs", "--jobs", "jobs.yaml", "--backend", "strace"),
        ("twin", "run", archive, "-o", "here"),
        ("generate", "unet3d", "-o", "ds", "--samples", "4", "--scale", "0.05", "--workers", "3"),
        ("generate", "-o", "ds", "--verify", "--workers", "3"),
    ):
        done = as_installed(*command, cwd=shadowed)
        assert not list(shadowed.parent.glob("*-ran")), (command, done.stderr)
        assert "Traceback" not in done.stderr and (done.returncode == 0 or command[0] == "trace"), done.stderr
