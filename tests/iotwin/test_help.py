"""What the command line offers, and that offering it costs nothing."""

import os
import subprocess
import sys

import pytest

from iotwin.command import Command, Group
from iotwin.commands.twin import TwinGroup
from iotwin.main import build_parser, load_commands, main
from tests.conftest import ROOT, run_iotwin

PARSERS = build_parser(load_commands())[1]
COMMANDS = list(PARSERS)  # a group's leaves by two words: "twin pack"
GROUPS = [command for command in load_commands() if isinstance(command, Group)]
TOP = [command.name for command in load_commands()]
HEAVY = {"numpy", "pandas", "pyarrow", "matplotlib", "torch", "yaml", "msgspec", "rich"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([*name.split(), "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom iotwin.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print('heavy:', sorted({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_names_every_command():
    text = run_iotwin("--help").stdout
    assert all(f"\n    {name}" in text for name in TOP)


@pytest.mark.parametrize("name", [command.name for command in load_commands() if isinstance(command, Command)])
def test_every_command_has_the_common_options(name):
    assert {"--json", "--quiet", "--debug"} <= _options(name)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_action_of_a_group_has_the_common_options(group):
    assert group.leaves()
    for leaf in group.leaves():
        assert {"--json", "--quiet", "--debug"} <= _options(f"{group.name} {leaf}")


def _options(name: str) -> set[str]:
    return {option for action in PARSERS[name]._actions for option in action.option_strings}


def test_without_a_command_the_help_is_shown():
    result = run_iotwin()
    assert result.returncode == 2 and "COMMAND" in result.stdout


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_group_alone_shows_its_actions(group):
    result = run_iotwin(group.name)
    assert result.returncode == 2 and all(f"\n    {leaf}" in result.stdout for leaf in group.leaves())


def test_a_wrong_option_of_an_action_is_named():
    result = run_iotwin("twin", "run", "a.twin", "-o", "b", "--forc")
    assert result.returncode == 2
    assert result.stderr == "iotwin twin run: unknown option '--forc'; see: iotwin twin run --help\n"


class _Without(Group):
    """A group that means nothing by its name alone."""

    name, help = "without", "for the test"
    modules = ("pack", "run")
    default = None

    def leaves(self):
        return TwinGroup().leaves()


def test_an_unknown_action_names_the_nearest(monkeypatch, capsys):
    monkeypatch.setattr("iotwin.main.load_commands", lambda called: [_Without()])
    with pytest.raises(SystemExit) as end:
        main(["without", "pakc", "x"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "iotwin without: unknown action 'pakc' (did you mean 'pack'?); see: iotwin without --help\n"


@pytest.mark.parametrize("words", ["pack there -o x.twin --json", "-o x.twin pack there --json", "--json -o x.twin pack there"])
def test_an_action_may_stand_behind_its_options(words, capsys):
    assert main(["twin", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("iotwin twin pack: there holds no finished twin")


def test_a_value_of_an_option_is_no_action(capsys):
    assert main(["twin", "-o", "pack", "real.trace"]) == 1
    assert "real.trace: no such trace" in capsys.readouterr().err
