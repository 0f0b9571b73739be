"""Who owns the directory that a command writes to cannot lead it elsewhere by links planted before.

Each command runs once into an empty directory, which shows what it writes there. Then links of all these names, of the names
that they had while unfinished (with the next thousands of process numbers, as earlier versions named them), and of its folders
lead to a directory of somebody else. Nothing of that directory may change.
"""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iotwin.trace_store.manifest import Host, Manifest, Target
from iotwin.trace_store.raw.record_files import Recording
from tests.processes import call
from tests.synthetic import Job, write_job
from tests.workloads.pipedream.common import DATA

NOBODY = 65534
MOST_NAMES = 3  # of what a command writes, the others being alike
NUMBERS = 2000  # of processes: a shell's next commands
WORKLOAD = """
workflow: {generate_data: true, train: true, checkpoint: true}
dataset: {data_folder: OUT/data, format: npy, num_files_train: 4, num_samples_per_file: 1, record_length_bytes: 1000}
reader: {batch_size: 2, read_threads: 1}
train: {epochs: 1, computation_time: 0.001}
checkpoint: {checkpoint_folder: OUT/checkpoints}
model: {name: small, model_size_bytes: 1000}
output: {folder: OUT/output}
"""
GRAPH = DATA / "vgg16.graph.txt"
COMMANDS = {
    "report": ["report", "TRACE", "-o", "OUT/r.html"],
    "plot timeline": ["plot", "timeline", "TRACE", "-o", "OUT/p.png"],
    "merge": ["merge", "TRACE", "OTHER", "-o", "OUT/merged"],
    "export csv": ["export", "TRACE", "-o", "OUT/e.csv"],
    "export fio": ["export", "TRACE", "-o", "OUT/e.iolog", "--files", "OUT/files"],
    "fit": ["fit", "TRACE", "-o", "OUT/twin.yaml"],
    "compare": ["compare", "TRACE", "OTHER", "-o", "OUT"],
    "compare into a new folder": ["compare", "TRACE", "OTHER", "-o", "OUT/results"],
    "generate": ["generate", "unet3d", "-o", "OUT/data", "--samples", "2", "--scale", "0.05"],
    "emulate": ["emulate", "WORKLOAD"],
    "trace": ["trace", "-o", "OUT/t", "--backend", "strace", "--", "true"],
    "pipedream compress": ["pipedream", "compress", GRAPH, "-o", "OUT/g.txt"],
    "pipedream optimize": ["pipedream", "optimize", GRAPH, "-n", "4", "-o", "OUT"],
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("traces")
    return write_job(folder / "one.trace", Job()), write_job(folder / "other.trace", Job(seed=2))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder of somebody else, which the test leaves as it was."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "precious").write_bytes(b"mine")
    yield folder
    assert [path.name for path in folder.rglob("*")] == ["precious"] and (folder / "precious").read_bytes() == b"mine"


def link(path: Path, target: Path) -> None:
    """Make a link of another user's."""
    path.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(path, NOBODY, NOBODY)


def plant(directory: Path, name: str, victim: Path, is_folder: bool) -> None:
    """Put links in `directory` where `name` would be unfinished."""
    target = victim if is_folder else victim / "precious"
    first = os.getpid()
    for planted in (f"{name}.partial", f"{name}.tmp", *(f".{name}.{number}.partial" for number in range(first, first + NUMBERS))):
        link(directory / planted, target)


def run(words: list[str | Path], out: Path, traces: tuple[Path, Path]) -> int:
    workload = out.parent / "workload.yaml"
    workload.write_text(WORKLOAD.replace("OUT", str(out)))
    known = {"TRACE": str(traces[0]), "OTHER": str(traces[1]), "WORKLOAD": str(workload)}
    return call(*(known.get(str(word), str(word).replace("OUT", str(out))) for word in words)).returncode


@pytest.fixture(scope="module")
def names_of(tmp_path_factory: pytest.TempPathFactory, traces: tuple[Path, Path]) -> Callable[[str], dict[str, bool]]:
    """What a command writes into an empty directory: whether a folder, by relative name."""

    @functools.cache
    def found(command: str) -> dict[str, bool]:
        out = tmp_path_factory.mktemp("first") / "out"
        out.mkdir()
        assert run(COMMANDS[command], out, traces) == 0
        names = {str(path.relative_to(out)): path.is_dir() for path in out.rglob("*")}
        assert names
        return names

    return found


@pytest.fixture(params=COMMANDS)
def written(
    request: pytest.FixtureRequest, tmp_path: Path, traces: tuple[Path, Path], names_of: Callable[[str], dict[str, bool]]
) -> tuple[Callable[[], int], Path, dict[str, bool]]:
    """How to run a command, its empty output directory, and what it writes there."""
    (out := tmp_path / "out").mkdir()
    return lambda: run(COMMANDS[request.param], out, traces), out, names_of(request.param)


def test_links_in_the_place_of_what_is_unfinished_are_not_followed(written, victim):
    command, out, names = written
    for name in [name for name in names if "/" not in name][:MOST_NAMES]:
        plant(out, name, victim, names[name])
    assert command() == 0
    assert {name for name in names if not (out / name).exists()} == set()


def test_links_in_the_place_of_folders_and_files_are_not_followed(written, victim):
    command, out, names = written
    for name in (name for name in names if "/" not in name):
        link(out / name, victim if names[name] else victim / "precious")
    command()


def test_links_within_folders_that_are_there_already_are_not_followed(written, victim):
    command, out, names = written
    for name in sorted(names):
        path = out / name
        if "/" in name and not any(above.is_symlink() for above in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            link(path, victim if names[name] else victim / "precious")
    command()


def test_a_recovery_follows_no_link_in_the_trace(tmp_path, victim):
    path = tmp_path / "t"
    Recording(path, Manifest(status="recording", backend="strace", host=Host("", "", 0, 0, ""), target=Target())).close()
    for name in ("manifest.json", "files.parquet", "processes.parquet", "phases.parquet", "events.parquet", "raw/events.bin"):
        plant(path / Path(name).parent, Path(name).name, victim, is_folder=name == "events.parquet")
    for name in ("files.parquet", "processes.parquet"):
        link(path / name, victim / "precious")
    for name in ("samples", "events.parquet"):
        link(path / name, victim)
    call("recover", path)
