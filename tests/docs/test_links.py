"""Links lead somewhere, and every command and option has its place in the documentation."""

import argparse
import ast
import re
import shlex

import pytest

from iotwin.command import Group
from iotwin.main import _called, build_parser, load_commands
from iotwin.trace_store import manifest, schema
from tests.conftest import ROOT
from tests.docs.pages import PAGES, anchors, links
from tests.test_house import ROOMS

COMMANDS = {command.name: command for command in load_commands()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    for number, target in links(page):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.relative_to(ROOT)}:{number}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(linked), f"{page.relative_to(ROOT)}:{number}: {target}: no such heading"


def test_the_answers_of_contributing_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text.partition("### Where is it decided")[2].partition("\n## ")[0].splitlines()[6:]
    answers = [row.split("|")[2] for row in rows if row.startswith("| ")]
    assert 10 <= len(answers) <= 15
    missing = []
    for answer in answers:
        folder = ROOT
        for name in re.findall(r"`([\w/]+\.\w+)`", answer):  # after the first, names without a folder are of the same one
            folder = (ROOT / name).parent if "/" in name else folder
            missing += [] if (folder / name.rpartition("/")[2]).is_file() else [name]
    assert not missing


def test_every_page_is_linked_from_the_index():
    linked = {(ROOT / "docs" / target.partition("#")[0]).resolve() for _, target in links(ROOT / "docs" / "README.md")}
    missing = {page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"} - linked
    assert not missing


def _parsers() -> dict[str, argparse.ArgumentParser]:
    return build_parser(list(COMMANDS.values()))[1]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_a_page_with_all_its_options(name):
    page = ROOT / "docs" / f"{name}.md"
    assert page.is_file(), f"docs/{name}.md is missing"
    text = page.read_text(encoding="utf-8")
    called = [words for words in _parsers() if words.split()[0] == name]
    options = [option for words in called for action in _parsers()[words]._actions for option in action.option_strings]
    missing = [option for option in options if option.startswith("--") and option != "--help" and option not in text]
    assert not missing, f"docs/{name}.md says nothing of {missing}"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_examples_of_help_parse(name):
    """The examples under --help have only options that exist."""
    command = COMMANDS[name]
    leaves = command.leaves().values() if isinstance(command, Group) else []
    for line in "\n".join([command.epilog, *(leaf.epilog for leaf in leaves)]).splitlines():
        words = shlex.split(line.removeprefix("example: "))
        if words[:1] == ["iotwin"]:
            parser, parsers = build_parser(load_commands())
            arguments, _ = _called(words[1:], COMMANDS, parsers)
            assert parser.parse_args(arguments).called.split()[0] == name


@pytest.mark.parametrize("table", ["EVENTS", "FILES", "PROCESSES", "PHASES", *schema.SAMPLES])
def test_every_column_of_a_trace_is_documented(table):
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    columns = schema.SAMPLES[table] if table in schema.SAMPLES else getattr(schema, table)
    missing = [name for name in columns.names if f"`{name}`" not in text]
    assert not missing, f"docs/trace-format.md says nothing of {table}'s {missing}"


def test_every_field_of_the_manifest_is_documented():
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    for struct in (manifest.Manifest, manifest.Host, manifest.Target, manifest.Cost, manifest.ClockPair, manifest.Ring):
        missing = [name for name in struct.__struct_fields__ if f"`{name}`" not in text]
        assert not missing, f"docs/trace-format.md says nothing of {struct.__name__}'s {missing}"


def test_every_kind_role_and_phase_is_documented():
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    names = [*schema.FILE_KINDS, *schema.PROCESS_ROLES, *schema.PHASE_NAMES]
    assert not [name for name in names if f"`{name}`" not in text]


def _source() -> str:
    """The text of all string literals of the product, joined as Python joins them."""
    text = ""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text += node.value + "\n"
    return text


def test_the_lines_of_troubleshooting_are_printed_somewhere():
    """Each line quoted there, cut at its placeholders, is in the source."""
    source = _source()
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(.+?)` \|", page, flags=re.MULTILINE)
    assert len(lines) > 30
    missing = [fragment for line in lines for fragment in line.split("…") if len(fragment) > 6 and fragment not in source]
    assert not missing
