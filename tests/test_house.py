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

ROOMS = (
    "common",
    "trace_store",
    "workload_yaml",
    "tracing_tools",
    "datagen",
    "workloads",
    "benchmark",
    "tracesim",
    "trace_visuals",
    "iotwin",
)
# What a room may import besides itself, common and the trace store; of another room only these folders or modules.
ARROWS = {
    "common": (),
    "trace_store": (),
    "workload_yaml": (),
    "tracing_tools": (),
    "datagen": ("workload_yaml",),
    "workloads": ("workload_yaml", "datagen.layouts"),
    "benchmark": ("workload_yaml", "datagen.layouts", "datagen.formats.tfrecord", "workloads.policies"),
    "tracesim": (),
    "trace_visuals": ("tracesim",),
    "iotwin": ("tracing_tools", "workload_yaml", "datagen", "workloads", "benchmark", "tracesim", "trace_visuals"),
}
STORE = "trace_store"
# Programs under the names that originals have, each a thin call of the command line: no module imports them.
PROGRAMS = {
    f"workloads.pipedream.{name}"
    for name in (
        "main",
        "driver",
        "terminate_runtime",
        "compress_graph_branches",
        "optimizer_graph_hierarchical",
        "convert_graph_to_model",
    )
}
FLOOR_MAY_IMPORT = {"numpy", "msgspec", "rich", "google_crc32c"}  # besides the standard library
WITHOUT_TORCH = ("workloads.policies", "workloads.dtr.static", "workloads.dtr.simulator", "workloads.pipedream.plan")
SYSTEMS = ("checkfreq", "detrain", "dtr", "pipedream")
MOST_LINES, MOST_FILES = 400, 20
# Modules above that, each with why it is not split.
LONG = {
    "workloads/dtr/simulator/eviction.py": "one algorithm, compiled by numba or plain; numba compiles what lies in one file",
}
# Folders above that, each with why.
CROWDED = {
    "iotwin/commands": "a file a command",
    "workload_yaml": "a file for each part of the YAML and of a recording that fit and the emulator share",
    "common": "a file for each thing that several rooms share",
}


# The one module that opens and decodes what somebody else may have made. The others read no such file; each with what it reads.
READER = "common/untrusted_files.py"
READERS_OF_OUR_OWN = {
    "workload_yaml/step_time_models.py": "a table of the package",
    "benchmark/emulator/readers/numpy_files.py": "samples, by the system calls that a job makes",
    "benchmark/emulator/results/run_files.py": "/proc",
    "common/checkpoints.py": "the bounded reader of the checkpoint store",
    "common/commit.py": "the checkpoint store's message between ranks",
    "common/tensor_file.py": "the bounded reader of the checkpoint store",
    "trace_visuals/report/report_page.py": "the package's page, style and scripts",
    "tracing_tools/backends/kernel_support.py": "/proc and /sys",
    "tracing_tools/backends/kernel_types.py": "/sys/kernel/btf",
    "tracing_tools/backends/preload.py": "/proc",
    "tracing_tools/probes/__init__.py": "the package's probes",
    "tracing_tools/recorder/socket_addresses.py": "/proc",
    "tracing_tools/probes/compilation.py": "the package's probes",
    "tracing_tools/targets/block_cgroup.py": "cgroups",
    "tracing_tools/targets/cgroup.py": "cgroups",
    "tracing_tools/targets/storage_limits.py": "cgroups",
    "tracing_tools/targets/cgroup_mounts.py": "/proc",
    "trace_store/importers/chrome.py": "events, whose numbers `is_possible` checks: some are unsigned",
    "trace_store/logs/job_log.py": "lines, whose losses may be NaN; the numbers that count are checked one by one",
    "trace_store/profiles.py": "events, as those of chrome.py",
    "workloads/checkfreq/epochs/generators.py": "a generator's state of 128 bits, from a checkpoint that has its checksum",
    "workloads/common/images.py": "samples, by the system calls that a job makes",
    "workloads/detrain/detectors/findings.py": "what this program and its forks found",
    "workloads/dtr/simulator/compiler.py": "the package's modules",
    "workloads/state/keeper.py": "the package's modules",
}
DECODERS = {"json.load", "json.loads", "gzip.open"} | {
    f"msgspec.{format_}.{name}" for format_ in ("json", "msgpack", "yaml", "toml") for name in ("decode", "Decoder")
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the rooms by its dotted name within the package; `iotwin` itself holds the command line."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


# Who else may change what the file system holds, each with why. A folder stands for all that is in it.
CONTROL_FILES = "the kernel's control files and folders, which hold no data"
PLAYED_CALLS = "plays a job's own calls on files that it has listed as its own, relative to descriptors"
MAY_WRITE = {
    "common.files": "creates and replaces",
    "common.paths_below": "creates and replaces by names that others chose",
    "common.removal": "removes",
    "common.terminal": "opens /dev/null",
    "benchmark.emulator.checkpoints": PLAYED_CALLS,
    "benchmark.emulator.recorded": PLAYED_CALLS,
    "tracing_tools.targets.block_cgroup": CONTROL_FILES,
    "tracing_tools.targets.cgroup": CONTROL_FILES,
    "tracing_tools.targets.container": CONTROL_FILES,
    "tracing_tools.targets.launched_container": CONTROL_FILES,
    "tracing_tools.targets.storage_limits": CONTROL_FILES,
    "tracing_tools.targets.output_keeper": CONTROL_FILES,
    "tracing_tools.targets.running_processes": CONTROL_FILES,
}
OF_OS = {
    "link", "makedirs", "mkdir", "mkfifo", "mknod", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "symlink",
    "truncate", "unlink",
}  # fmt: skip
OF_SHUTIL = {"copy", "copy2", "copyfile", "copytree", "move", "rmtree"}
OF_TEMPFILE = {"NamedTemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp", "mktemp"}
OF_PATH = {"hardlink_to", "mkdir", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text"}


def changes_files(call: ast.Call) -> bool:
    """Whether a call, by its name and arguments, creates, replaces, removes or cuts a file or folder."""
    name, owner = ast.unparse(call.func).rpartition(".")[2], ast.unparse(call.func).rpartition(".")[0]
    if owner in ("os", "shutil", "tempfile"):
        opens = name == "open" and not ast.unparse(call).startswith("os.open(os.devnull") and "O_WRONLY|O_RDWR|O_CREAT|O_TRUNC"
        named = {"os": OF_OS, "shutil": OF_SHUTIL, "tempfile": OF_TEMPFILE}[owner]
        return name in named or bool(opens and any(flag in ast.unparse(call) for flag in opens.split("|")))
    if name == "open":
        modes = [*call.args[0 if owner else 1 :][:1], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        return any(isinstance(mode, ast.Constant) and bool(set(str(mode.value)) & set("wax+")) for mode in modes)
    # Of one argument: text is replaced by two, a frame's columns are renamed by name.
    is_rename = name in ("rename", "replace") and len(call.args) == 1 and not call.keywords
    return owner != "" and (name in OF_PATH or (is_rename and not isinstance(call.args[0], ast.Constant)))


def short(name: str) -> str:
    """Return an imported name without the package's, if it names something in a room."""
    package, _, rest = name.partition(".")
    assert package not in ROOMS[:-1], f"{name} is imported as iotwin.{name}: the package's name is all that others have to avoid"
    return rest if package == "iotwin" and rest.split(".")[0] in ROOMS[:-1] else name


@cache
def imports(module: str) -> frozenset[str]:
    """The names that a module imports, at its top or within functions; of our own modules the deepest."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {short(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            deeper = {short(f"{node.module}.{alias.name}") for alias in node.names} & modules().keys()
            names |= deeper or {short(str(node.module))}
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


def test_files_are_created_replaced_and_removed_in_one_module_each():
    """A second way to write or remove would have to be as safe with links and with others' files, and was not, four times."""
    wrong, needed = [], set()
    for module, path in modules().items():
        if allowed := next((name for name in MAY_WRITE if within(module, name)), None):
            needed.add(allowed)
            continue
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        wrong += [f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:80]}" for call in calls if changes_files(call)]
    assert not wrong and needed == MAY_WRITE.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path.open('wb')", True), ("open(path, 'a')", True), ("path.open(mode='x')", True), ("path.open()", False),
        ("archive.open(member, 'w')", False), ("path.open(encoding='utf-8')", False),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", True), ("os.open(path, os.O_RDONLY)", False),
        ("os.open(os.devnull, os.O_WRONLY)", False), ("path.write_text(text)", True), ("folder.mkdir(parents=True)", True),
        ("shutil.rmtree(path)", True), ("shutil.which('cc')", False), ("tempfile.mkdtemp()", True), ("path.replace(other)", True),
        ("text.replace('a', 'b')", False), ("path.rename(other)", True), ("frame.rename(columns=names)", False),
        ("series.rename('read')", False), ("os.replace(a, b)", True), ("path.unlink(missing_ok=True)", True),
    ],
)  # fmt: skip
def test_what_changes_files_is_known_by_its_call(text, expected):
    assert changes_files(ast.parse(text, mode="eval").body) == expected


def test_fit_and_emulator_do_not_import_one_another():
    wrong = [
        (a, b)
        for a, b in arrows()
        if {a.split(".")[1:2][0] if "." in a else "", b.split(".")[1:2][0] if "." in b else ""} == {"fit", "emulator"}
        and within(a, "benchmark")
        and within(b, "benchmark")
    ]
    assert not wrong


@cache
def reached(module: str) -> frozenset[str]:
    """Return the modules of the rooms that a module imports, itself and those of the modules that it imports included.

    The package's front door is left out: the functions for users of Python import rooms when they are called.
    """
    found, left = {module}, [module]
    while left:
        new = {name for name in imports(left.pop()) if name in modules() and name != "iotwin"} - found
        found |= new
        left += new
    return frozenset(found)


def test_decisions_and_planners_need_no_torch():
    wrong = [
        f"{module}, by {name}"
        for module in modules()
        if within(module, *WITHOUT_TORCH)
        for name in reached(module)
        if any(within(imported, "torch", "tensorflow") for imported in imports(name))
    ]
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
    rooms = {f"iotwin.{room}" for room in ROOMS if room not in ("common", "iotwin")}
    program = (
        "import sys\nfrom iotwin.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('rooms:', sorted({rooms!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "rooms: []"


def test_long_modules_and_crowded_folders_are_listed_with_their_reason():
    long = {str(p.relative_to(ROOT)) for p in modules().values() if len(p.read_text(encoding="utf-8").splitlines()) > MOST_LINES}
    count: dict[str, int] = {}
    for path in modules().values():
        count[str(path.parent.relative_to(ROOT))] = count.get(str(path.parent.relative_to(ROOT)), 0) + 1
    crowded = {folder for folder, files in count.items() if files > MOST_FILES}
    for name, reason in sorted((LONG | CROWDED).items()):
        print(f"{name}: {reason}")
    assert long == LONG.keys() and crowded == CROWDED.keys()


def reads_a_file(call: ast.Call) -> bool:
    """Whether the call decodes content that may be a file's, or opens a path for reading, unless it is one of /proc or /sys."""
    name = ast.unparse(call.func)
    if isinstance(call.func, ast.Attribute) and name.startswith(("Path('/proc", "Path('/sys", "Path(f'/proc", "Path(f'/sys")):
        return False
    *_, last = name.split(".")
    if name in DECODERS or (last in ("read_text", "read_bytes") and "." in name):
        return True
    if last != "open" or name == "os.open":
        return False
    mode = [word.value for word in call.keywords if word.arg == "mode"] or call.args[1 if name == "open" else 0 :][:1]
    if not mode:
        return name == "open" or bool(call.keywords) or name.startswith("Path(")
    return isinstance(mode[0], ast.Constant) and set(str(mode[0].value)) <= set("rbt")


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        ("open(p)", True), ("open(p, 'rb')", True), ("p.open('r', encoding='utf-8')", True), ("p.open(encoding='utf-8')", True),
        ("Path(p).open()", True), ("(a / b).read_text()", True), ("json.loads(x)", True), ("msgspec.json.Decoder(T)", True),
        ("open(p, 'wb')", False), ("p.open('xb')", False), ("gate.open()", False), ("archive.open(member, 'r')", False),
        ("Path('/proc/meminfo').read_text()", False), ("Path(f'/proc/{pid}/stat').open('rb')", False), ("read_text(p)", False),
    ],
)  # fmt: skip
def test_calls_that_read_files_are_recognised(call, reads):
    assert reads_a_file(ast.parse(call).body[0].value) == reads


def test_files_that_somebody_else_may_have_made_are_read_by_one_module():
    """By `common.untrusted_files`, which bounds what it reads and waits for nobody."""
    found = {
        str(path.relative_to(ROOT))
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and reads_a_file(node)
    }
    assert found - {READER} == READERS_OF_OUR_OWN.keys()


def test_every_package_is_installed():
    """Under `iotwin` alone, by its links to the rooms: a room without a link is missing for whoever installs."""
    from setuptools import find_packages

    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert set(find_packages(str(ROOT), include=["iotwin*"])) == {
        name if within(name, "iotwin") else f"iotwin.{name}" for name in packages
    }
