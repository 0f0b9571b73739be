"""The package as others install it: its wheel in an environment that has the libraries and no checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT

_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
_NOT_THE_CODE = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "*.o", "build", "tests")


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    options = {"env": _ENVIRONMENT, "check": False, "cwd": "/", **options}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE_S, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(source: Path, what: str, output: Path, path: str = os.environ["PATH"]) -> Path:
    """Build the "sdist" or "wheel" of the tree at `source`, and return its path."""
    output.mkdir()
    run(sys.executable, "-c", _BUILD, f"build_{what}", output, cwd=source, env={**_ENVIRONMENT, "PATH": path})
    (built,) = output.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, as a build leaves files in it."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "tree", symlinks=True, ignore=_NOT_THE_CODE))


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build(source, "wheel", source.parent / "wheel")


def environment_with(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel and the libraries of this one, and return its folder of programs."""
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", "--quiet"]
    run(*pip, wheel)
    # Python reads no .pth file of a folder that a .pth file names, so the checkout's own link is not followed.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_one_name_is_all_that_an_environment_gets(wheel: Path):
    assert {name.split("/")[0] for name in contents(wheel)} == {"iotwin", "iotwin-0.1.0.dist-info"}
    assert "iotwin/py.typed" in contents(wheel)


def test_the_source_distribution_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path):
    with tarfile.open(build(source, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    assert (tmp_path / "iotwin-0.1.0" / "CHANGELOG.md").is_file()
    assert contents(build(tmp_path / "iotwin-0.1.0", "wheel", tmp_path / "wheel")) == contents(wheel)


@pytest.mark.skipif(not shutil.which("clang"), reason="clang is not installed")
def test_the_installed_package_brings_the_compiled_programs(wheel: Path, programs: Path):
    assert len([name for name in contents(wheel) if name.endswith(".bpf.o")]) == 2
    code = "from iotwin.tracing_tools.probes import compiled_probes; print(compiled_probes(), compiled_probes('cuda'))"
    done = run(programs / "python", "-c", code, env={**_ENVIRONMENT, "PATH": str(programs)})  # without clang
    assert all(Path(path).is_file() and programs.parent in Path(path).parents for path in done.stdout.split())


def test_without_clang_the_package_is_built_and_doctor_names_clang(source: Path, tmp_path: Path):
    bare = build(source, "wheel", tmp_path / "wheel", path=str(tmp_path))
    assert not [name for name in contents(bare) if name.endswith(".o")]
    programs = environment_with(bare, tmp_path / "environment")
    done = subprocess.run(
        [programs / "iotwin", "doctor", "--json"], env={**_ENVIRONMENT, "PATH": str(programs)}, capture_output=True, check=False
    )
    (reason,) = [row["reason"] for row in json.loads(done.stdout)["checks"] if row["name"] == "clang"]
    assert "clang is not installed; install the package clang" in reason


def test_a_trace_is_opened_from_python(programs: Path, tmp_path: Path):
    run(programs / "iotwin", "trace", "-o", tmp_path / "real.trace", "--quiet", "--", "cat", "/etc/hostname")
    code = "import sys, iotwin; print(iotwin.open(sys.argv[1]).manifest.status)"
    assert run(programs / "python", "-c", code, tmp_path / "real.trace").stdout == "complete\n"


def test_the_package_is_imported_without_its_rooms(programs: Path):
    code = "import sys, iotwin; print([name for name in sys.modules if name.startswith(('iotwin.', 'numpy', 'pyarrow'))])"
    assert run(programs / "python", "-c", code).stdout == "[]\n"


def test_python_runs_the_package(programs: Path):
    assert run(programs / "python", "-m", "iotwin", "--version").stdout == run(programs / "iotwin", "--version").stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("iotwin chec", {"checkpoints", "checkfreq"}), ("iotwin twin p", {"pack"}), ("iotwin fit --p", {"--parameters"}),
     ("iotwin fit -o tw", {"twin.yaml"}), ("iotwin info tw", {"twin.yaml"})],
)  # fmt: skip
def test_the_installed_package_completes_in_bash(programs: Path, tmp_path: Path, typed: str, completed: set[str]):
    (tmp_path / "twin.yaml").touch()
    (tmp_path / "script").write_text(run(programs / "iotwin", "completion", "bash").stdout)
    words = typed.split()
    press_tab = (
        f"source ./script; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; COMP_LINE='{typed}'; COMP_POINT={len(typed)}\n"
        '_shtab_iotwin; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert set(run("bash", "-c", press_tab, cwd=tmp_path).stdout.split()) == completed


TRAIN = """
import sys, multiprocessing
import common, benchmark
from workloads import own
from pathlib import Path

def work(number):
    import common, benchmark, workloads
    names = [module.__file__ for module in (common, benchmark, workloads)]
    read = len(Path(f"data/{number % 8}.bin").read_bytes())
    return names, read

if __name__ == "__main__":
    print(common.WHOSE, benchmark.WHOSE, own.WHOSE, flush=True)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            for names, _ in pool.map(work, range(16)):
                assert all(name.startswith(sys.argv[1]) for name in names), names
"""


def test_names_of_ours_never_meet_a_jobs(programs: Path, tmp_path: Path):
    """A job with its own common, benchmark and workloads on PYTHONPATH is traced, fitted and emulated from its own directory."""
    job = tmp_path / "job"
    (job / "workloads").mkdir(parents=True)
    (job / "data").mkdir()
    for name in ("common.py", "benchmark.py", "workloads/__init__.py", "workloads/own.py"):
        (job / name).write_text("WHOSE = 'the job'\n")
    for number in range(8):
        (job / "data" / f"{number}.bin").write_bytes(bytes(50_000))
    (job / "train.py").write_text(TRAIN)

    def iotwin(*arguments: str) -> str:
        return run(programs / "iotwin", *arguments, cwd=job, env={**_ENVIRONMENT, "PYTHONPATH": str(job)}).stdout

    iotwin("trace", "-o", "t", "--", sys.executable, "train.py", str(job))
    assert (job / "t" / "logs" / "stdout").read_text().split("\n")[0] == "the job the job the job"
    iotwin("fit", "t", "-o", "twin.yaml", "--json")
    assert json.loads(iotwin("emulate", "twin.yaml", "--json", "++workload.output.folder=out"))["output"] == "out"
