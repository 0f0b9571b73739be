"""Run the parameter sets of DLIO's own tests, as they are typed there and with their own assertions, and count them by test.

    python -m tests.benchmark.dlio_suite.runner CHECKOUT [--ranks N] [--jobs N] [--native] [-k EXPRESSION]

CHECKOUT is one of github.com/mlcommons/DLIO_local_changes. pytest runs its test modules unchanged. `stand_ins` replaces what they
import of DLIO, Hydra and MPI: it starts this project's dlio_benchmark under mpirun, with the words that the test typed. Two
kinds of sets say less than the others. 28 of test_train ask for DALI's loaders: an empty package stands in for DALI,
and the emulator's own loader reads. 18 of test_transformed_sample use DLIO's Python API, which `stand_ins` imitates.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[3]
STAND_INS = Path(__file__).parent / "stand_ins"
MODULES = ("dlio_benchmark_test", "dlio_dataset_dimension_test", "dlio_ai_logging_test", "dlio_postprocessor_test")
_OPTIONS = ["-p", "no:cacheprovider", "-o", "addopts=", "-o", "timeout=600"]


class Setup(NamedTuple):
    """How the tests are run."""

    checkout: Path
    ranks: int = 2  # of the tests that do not start mpirun themselves
    jobs: int = 3  # at the same time
    frameworks: bool = True  # PyTorch's and TensorFlow's loaders read, not those that stand in for them where they are missing


def run_suite(setup: Setup, expression: str = "") -> dict[str, str]:
    """Return the outcome of every parameter set by its name: '' where it passed, else the reason."""
    with tempfile.TemporaryDirectory(prefix="iotwin-dlio-") as scratch:
        places = [_place(setup.checkout, Path(scratch) / str(number)) for number in range(setup.jobs)]
        names = _collected(setup, places[0], expression)
        shares = [names[number :: setup.jobs] for number in range(setup.jobs)]
        with ThreadPoolExecutor(setup.jobs) as pool:
            found = list(pool.map(lambda work: _run(setup, *work), zip(places, shares, strict=True)))
        return {name: reason for outcomes in found for name, reason in outcomes.items()}


def _place(checkout: Path, place: Path) -> Path:
    """A directory of its own for the tests to run in, as they write beside themselves."""
    shutil.copytree(checkout / "tests", place / "tests")
    (place / "pytest.ini").write_text("[pytest]\nmarkers =\n    full_suite: all that DLIO does not run by default\n")
    return place


def _environment(setup: Setup) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(ROOT / "benchmark" / "bin"), os.environ["PATH"])),
        "PYTHON": sys.executable if setup.frameworks else str(STAND_INS / "bin" / "python_without_frameworks"),
        "IOTWIN_DLIO_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(STAND_INS), str(ROOT))),
        "IOTWIN_DLIO_CHECKOUT": str(setup.checkout.absolute()),
        "IOTWIN_DLIO_RANKS": str(setup.ranks),
        "DFTRACER_ENABLE": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def _pytest(setup: Setup, place: Path, *words: str) -> str:
    """Return what pytest prints; each line goes to stderr, too, as a run takes long."""
    command = [sys.executable, "-m", "pytest", *_OPTIONS, *words]
    told = []
    with subprocess.Popen(command, cwd=place, env=_environment(setup), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            told.append(line)
            if " PASSED " in line or " FAILED " in line or " SKIPPED " in line:
                print(line, end="", file=sys.stderr, flush=True)
    return "".join(told)


def _collected(setup: Setup, place: Path, expression: str) -> list[str]:
    files = [f"tests/{name}.py" for name in MODULES]
    told = _pytest(setup, place, "-q", "--collect-only", "-k", expression, *files)
    names = [line for line in told.splitlines() if "::" in line]
    if not names:
        raise SystemExit(f"nothing was collected from {setup.checkout}:\n{told}")
    return names


def _run(setup: Setup, place: Path, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    _pytest(setup, place, "-v", "--junitxml=outcome.xml", *names)
    outcomes = {}
    for case in ElementTree.parse(place / "outcome.xml").iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        wrong = [part for part in case if part.tag in ("failure", "error", "skipped")]
        outcomes[name] = "\n".join(f"{part.tag}: {part.get('message')}\n{(part.text or '')[-3000:]}" for part in wrong)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=2, help="of the tests that do not start mpirun themselves")
    parser.add_argument("--jobs", type=int, default=3, help="sets at the same time")
    parser.add_argument("-k", default="")
    parser.add_argument("--native", action="store_true", help="read by the native loaders, which takes a tenth of the CPU time")
    args = parser.parse_args()
    outcomes = run_suite(Setup(args.checkout, args.ranks, args.jobs, not args.native), args.k)
    groups = Counter(name.partition("[")[0] for name in outcomes)
    passed = Counter(name.partition("[")[0] for name, reason in outcomes.items() if not reason)
    for name, reason in outcomes.items():
        if reason:
            print(f"--- {name}\n{reason}\n")
    for group, count in groups.items():
        print(f"{group:80} {passed[group]:3}/{count}")
    print(f"{'all':80} {passed.total():3}/{groups.total()}")


if __name__ == "__main__":
    main()
