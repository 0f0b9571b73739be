"""The rules of the house, read off every import: which room may import which, no circles, no crowds. See CONTRIBUTING.md."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

ROOMS = ("common", "tracing_tools", "datagen", "workloads", "benchmark", "tracesim", "trace_visuals", "iotwin")
# What a room may import besides itself, common and the trace store; of another room only these folders or modules.
ARROWS = {
    "common": (),
    "tracing_tools": (),
    "datagen": (),
    "workloads": ("datagen.dlio", "datagen.layouts"),
    "benchmark": ("datagen.dlio", "datagen.layouts", "datagen.formats.tfrecord", "workloads.policies"),
    "tracesim": (),
    "trace_visuals": ("tracesim",),
    "iotwin": ("tracing_tools", "datagen", "workloads", "benchmark", "tracesim", "trace_visuals"),
}
STORE = "tracing_tools.trace"
# Programs under the names that originals have, each a thin call of the command line: no module imports them.
PROGRAMS = {
    f"workloads.pipedream.{name}"
    for name in ("driver", "compress_graph_branches", "optimizer_graph_hierarchical", "convert_graph_to_model")
}
FLOOR_MAY_IMPORT = {"numpy", "msgspec", "rich", "google_crc32c"}  # besides the standard library
WITHOUT_TORCH = ("workloads.policies", "workloads.dtr.static", "workloads.dtr.simulator", "workloads.pipedream")
SYSTEMS = ("checkfreq", "detrain", "dtr", "pipedream")
MOST_LINES, MOST_FILES = 400, 20
# Modules above that, each with why it is not split.
LONG = {
    "workloads/dtr/kernel.py": "one algorithm, loaded twice: compiled by numba and plain; numba compiles what lies in one file",
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the rooms by its dotted name."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """The names that a module imports, at its top or within functions; of our own modules the deepest."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            deeper = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            names |= deeper or {str(node.module)}
    return frozenset(names)


def arrows() -> Iterator[tuple[str, str]]:
    """Every import of one of our modules by another."""
    for module in modules():
        for name in imports(module):
            if name in modules() and name != module:
                yield module, name


def within(name: str, *folders: str) -> bool:
    return any(name == folder or name.startswith(f"{folder}.") for folder in folders)


def test_every_import_follows_the_arrows():
    wrong = []
    for module, name in arrows():
        room, other = module.split(".")[0], name.split(".")[0]
        if room == other or (other == "common" and room != "common"):
            continue
        if module in PROGRAMS and name == "iotwin.main":
            continue
        if not within(name, *ARROWS[room]) and not (within(name, STORE) and room != "common"):
            wrong.append(f"{module} imports {name}")
    assert not wrong


def test_the_ground_floor_stands_on_the_standard_library():
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        if within(module, "common")
        for name in imports(module)
        if name.split(".")[0] not in sys.stdlib_module_names | FLOOR_MAY_IMPORT | {"common"}
    ]
    assert not wrong


def test_the_store_imports_no_other_folder_of_its_room():
    wrong = [(a, b) for a, b in arrows() if within(a, STORE) and within(b, "tracing_tools") and not within(b, STORE)]
    assert not wrong


def test_tests_import_helpers_from_where_they_are():
    """Processes are started, awaited and found by tests/processes.py."""
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and within(node.module or "", "tests"):
                place = ROOT.joinpath(*str(node.module).split("."))
                if not (place.is_dir() or place.with_suffix(".py").exists()):
                    wrong.append(f"{path.relative_to(ROOT)} imports {node.module}, which is not there")
    assert not wrong


def test_fit_and_emulator_do_not_import_one_another():
    wrong = [
        (a, b)
        for a, b in arrows()
        if {a.split(".")[1:2][0] if "." in a else "", b.split(".")[1:2][0] if "." in b else ""} == {"fit", "emulator"}
        and within(a, "benchmark")
        and within(b, "benchmark")
    ]
    assert not wrong


def test_decisions_and_planners_need_no_torch():
    wrong = [m for m in modules() if within(m, *WITHOUT_TORCH) and any(within(n, "torch", "tensorflow") for n in imports(m))]
    assert not wrong


def test_the_training_systems_never_import_one_another():
    def system(name: str) -> str | None:
        return next((each for each in SYSTEMS if within(name, f"workloads.{each}")), None)

    wrong = [(a, b) for a, b in arrows() if system(a) and system(b) and system(a) != system(b)]
    assert not wrong


def test_no_circle_between_files():
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for module, name in arrows():
        if not module.startswith(f"{name}."):  # a package's own front door may be open while its rooms are entered
            graph[module].add(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_circle_between_folders():
    """A folder and what lies in it count as one another's own."""

    def folder(name: str) -> str:
        return name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]

    graph: dict[str, set[str]] = {}
    for module, name in arrows():
        a, b = folder(module), folder(name)
        if not within(a, b) and not within(b, a):
            graph.setdefault(a, set()).add(b)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_help_imports_no_room():
    program = (
        "import sys\nfrom iotwin.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('rooms:', sorted({set(ROOMS) - {'common', 'iotwin'}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "rooms: []"


def test_long_modules_and_crowded_folders_are_listed_with_their_reason():
    long = {str(p.relative_to(ROOT)) for p in modules().values() if len(p.read_text(encoding="utf-8").splitlines()) > MOST_LINES}
    count: dict[str, int] = {}
    for path in modules().values():
        count[str(path.parent.relative_to(ROOT))] = count.get(str(path.parent.relative_to(ROOT)), 0) + 1
    crowded = {folder for folder, files in count.items() if files > MOST_FILES}
    for name, reason in sorted(LONG.items()):
        print(f"{name}: {reason}")
    assert long == LONG.keys() and not crowded


def test_every_package_is_installed():
    """pyproject lists packages by hand: one that is missing there is missing for whoever installs."""
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"])
    assert listed == {name for name, path in modules().items() if path.name == "__init__.py"}
