"""What tests need of the machine, and how they say that it is missing."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from iotwin.common.progress import set_quiet

ROOT = Path(__file__).parent.parent
PATIENCE_S = 300  # for what takes moments where nothing else runs: only a test that fails waits so long
STARTED: set[int] = set()  # pids of the command lines that tests of this process started
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# No machine is too slow for an example, and every run draws the same ones; --hypothesis-profile default draws others each time.
settings.register_profile(
    "iotwin", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
settings.load_profile("iotwin")


@functools.cache
def _reason_against(backend: str) -> str | None:
    from iotwin.tracing_tools.backends.choose_backend import unavailable_reason

    return unavailable_reason(backend)


def nothing_can_trace() -> str | None:
    """Why no backend at all works here, or None."""
    from iotwin.tracing_tools.backends.choose_backend import BACKEND_NAMES

    if any(_reason_against(name) is None for name in BACKEND_NAMES):
        return None
    return f"nothing here can trace: { {name: _reason_against(name) for name in BACKEND_NAMES} }"


# Under nohup, what tests start would be deaf to SIGHUP, which some send; a handler of our own is not inherited.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}  # a command replaces both


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip marked tests with the reason that names what is missing."""
    for item in items:
        if item.get_closest_marker("root") and (reason := _reason_against("libbpf")):
            item.add_marker(pytest.mark.skip(reason=f"no eBPF here: {reason}"))
        if item.get_closest_marker("torch") and not _has_torch():
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


# What the reasons of skips say where a package is missing that setup.sh installs. In CI no test may be skipped for that.
_MENDED_BY_SETUP = re.compile(
    r"not installed|is missing|could not import|no C compiler"
    r"|needs (PyTorch|TensorFlow|torch|tensorflow|strace|moto|s3fs|mpirun|mpi4py)"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test in CI that is skipped for want of a package."""
    return _without_needless_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips all its tests."""
    return _without_needless_skip((yield))


def _without_needless_skip(report: Report) -> Report:
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if _MENDED_BY_SETUP.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}\nIn CI this is a failure, as ./setup.sh test installs what is missing."
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give workers whole modules, and one worker all that share a Docker Engine or look for what tracers leave behind."""
    from xdist.scheduler import LoadFileScheduling

    class ByModule(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module: str = super()._split_scope(nodeid)
            return "shared" if _shares(module) else module

    return ByModule(config, log)


@functools.cache
def _shares(module: str) -> bool:
    return re.search(r"\b(docker_host|test_image|left_behind)\b", (ROOT / module).read_text()) is not None


def pytest_configure() -> None:
    """Let Ctrl-C end what the tests start: a shell has its background jobs ignore it, and children inherit that.

    Let them and this process keep the bytecode that they compile, hundreds of processes as they are, and write lines of one
    length everywhere.
    Let threads of OpenMP sleep instead of spin while they wait for work: where other tests use the processors, spinning takes
    most of the CPU time of a training.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["COLUMNS"] = "120"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


@pytest.fixture(autouse=True)
def process_wide_state() -> Iterator[None]:
    """Undo what a command run in the tests' own process sets for the whole process: the quiet flag and handlers of signals.

    Before the test, too: a fixture of a whole module may have run a command.
    """
    _restore_process()
    yield
    _restore_process()


def _restore_process() -> None:
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)
    set_quiet(False)


def run_iotwin(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a user would."""
    command = [sys.executable, "-m", "iotwin", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings: dict = {**streams, "text": True, "timeout": PATIENCE_S, "env": environment, **options}
    timeout_s = settings.pop("timeout")
    with subprocess.Popen(command, **settings) as process:
        STARTED.add(process.pid)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture
def forked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what the test starts as `python -m MODULE` in forks of this process, which has PyTorch already."""
    pytest.importorskip("torch._dynamo")  # the first optimizer imports it
    from tests.forked_programs import ForkedProgram

    monkeypatch.setattr(subprocess, "Popen", ForkedProgram)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user can reach; the way to `tmp_path` is closed to all but the one who runs the tests."""
    with tempfile.TemporaryDirectory(prefix="iotwin-open-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def until_sampled(trace: Path, kind: str, rows: int) -> str:
    """A shell command that ends when the recorder has written so many samples of that kind, however slow the machine."""
    return f'until [ $(grep -c \'"kind": "{kind}"\' {trace}/raw/journal.jsonl) -ge {rows} ]; do sleep 0.05; done'


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own with so much room, at the new directory `folder`; needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # what was started may still write


def knows_direct(directory: Path) -> bool:
    """Whether the file system has O_DIRECT."""
    try:
        os.close(os.open(directory / "direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def compile_c(program: Path, *sources: Path, options: Sequence[str] = ()) -> Path:
    """Compile C files to a program, or with `-shared` to a library; without a compiler the test is skipped."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    subprocess.run(["cc", "-O1", *options, "-o", program, *sources], check=True)
    return program


@pytest.fixture(scope="session")
def calls_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that makes a known number of calls."""
    source = ROOT / "tests" / "tracing_tools" / "calls.c"
    return compile_c(tmp_path_factory.mktemp("calls") / "calls", source, options=["-pthread"])


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server of moto's on a free port, with the bucket `data`; its keys are `key` and `secret`."""
    moto = pytest.importorskip("moto.server", reason="needs moto's S3 server")
    pytest.importorskip("s3fs", reason="needs s3fs")
    import boto3

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="data")
    yield url
    server.stop()


@pytest.fixture(scope="module")
def two_namespaces() -> Iterator[tuple[str, str]]:
    """Two hosts on this machine: (name, subnet); see tests/namespaces.py."""
    from tests.namespaces import two_hosts

    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a Docker Engine, which DOCKER_HOST names meanwhile; see tests/docker_engine.py."""
    from tests.docker_engine import docker_engine

    with docker_engine() as address:
        yield address


@pytest.fixture(scope="session")
def test_image(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of busybox and the C programs that count what they do, /bin/calls and /bin/direct."""
    from tests.docker_engine import build_test_image

    return build_test_image(tmp_path_factory.mktemp("image"))
