"""What the command line offers, and that offering it costs nothing."""

import os
import subprocess
import sys

import pytest

from iotwin.main import _build_parser, _commands
from tests.conftest import ROOT, run_iotwin

COMMANDS = [command.name for command in _commands()]
HEAVY = {"numpy", "pandas", "pyarrow", "matplotlib", "torch", "yaml", "msgspec", "rich"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom iotwin.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print('heavy:', sorted({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_names_every_command():
    text = run_iotwin("--help").stdout
    assert all(f"\n    {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options(name):
    options = {option for action in _build_parser(_commands())[1][name]._actions for option in action.option_strings}
    assert {"--json", "--quiet", "--debug"} <= options


def test_without_a_command_the_help_is_shown():
    result = run_iotwin()
    assert result.returncode == 2 and "COMMAND" in result.stdout
