"""Every example of the documentation runs as it stands, or names the test that covers it."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import PATIENCE_S, ROOT, nothing_can_trace
from tests.docs.pages import PAGES, Block, blocks, prose

_LANGUAGES = ("sh", "console", "python", "yaml", "sql", "text")
_WORD = re.compile(r"[A-Za-z_]{3,}")
# Pages with many commands that import pandas, Matplotlib or PyTorch.
IMPORTING = {
    "advise.md", "checkpoints.md", "compare.md", "detrain.md", "dtr.md", "export.md", "fit.md", "info.md", "plot.md", "report.md",
    "set.md", "stats.md", "tutorial_figure.md", "twin.md",
}  # fmt: skip
WITH_EXAMPLES = [page for page in PAGES if blocks(page)]


def _run(command: list[str], block: Block, directory: Path, environment: dict[str, str], status: int) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment, text=True, timeout=PATIENCE_S, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == status, f"{block.where}: {shlex.join(command)} ends with {done.returncode}:\n{done.stdout}"
    assert "Traceback" not in done.stdout, f"{block.where}:\n{done.stdout}"
    return done.stdout


def _run_shell(text: str, block: Block, directory: Path, environment: dict[str, str], status: int) -> str:
    return _run(["bash", "-euo", "pipefail", "-c", text], block, directory, environment, status)


def _run_console(block: Block, directory: Path, environment: dict[str, str], status: int) -> None:
    """Run the commands after `$`; of every line of output shown, the first two words must be in the real output."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        output = _run_shell(command, block, directory, environment, status)
        for line in shown.splitlines():
            for word in _WORD.findall(line)[:2]:
                assert word in output, f"{block.where}: `{command}` prints no '{word}' any more:\n{output}"


def _run_sql(block: Block, directory: Path, environment: dict[str, str], status: int) -> None:
    program = "import duckdb, sys; print(duckdb.sql(sys.argv[1]))"
    _run(["python", "-c", program, block.text], block, directory, environment, status)


def _run_block(block: Block, directory: Path, environment: dict[str, str]) -> None:
    status = int(block.markers.get("exit status", 0))
    if "file" in block.markers:
        (directory / block.markers["file"]).write_text(block.text)
    if block.language == "yaml":
        assert yaml.safe_load(block.text) is not None, f"{block.where}: empty YAML"
    elif block.language == "sh":
        _run_shell(block.text, block, directory, environment, status)
    elif block.language == "console":
        _run_console(block, directory, environment, status)
    elif block.language == "python":
        _run(["python", "-c", block.text], block, directory, environment, status)
    elif block.language == "sql":
        _run_sql(block, directory, environment, status)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page, page_directory, request):
    """Programs start as a user starts them, or, on pages that import much, in processes that have the packages already."""
    own = request.getfixturevalue("quick_environment" if page.name in IMPORTING else "environment")
    to_run = [block for block in blocks(page) if "not run" not in block.markers]
    if any("iotwin trace" in block.text for block in to_run) and (reason := nothing_can_trace()):
        pytest.skip(reason)
    if any(block.text.startswith("mpirun") for block in to_run) and shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (Open MPI)")
    for block in to_run:
        _run_block(block, page_directory, own)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page):
    """A block without a language, or a command in an indented block, would escape the test above."""
    for block in blocks(page):
        assert block.language in _LANGUAGES, f"{block.where}: a block is one of {_LANGUAGES}"
    for number, line in prose(page):
        command = re.match(r" {4,}(\$ )?(iotwin|python|make|pip|sudo) ", line)
        assert not command, f"{page.relative_to(ROOT)}:{number}: put commands into fenced blocks, where they are tested"


def _exempt() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if "not run" in block.markers]


@pytest.mark.parametrize("block", _exempt(), ids=lambda block: block.where)
def test_a_block_that_is_not_run_is_covered_elsewhere(block):
    """The marker ends in the test or script that covers the block, which must exist."""
    cover = block.markers["not run"].rpartition("; ")[2]
    file, _, test = cover.partition("::")
    assert (ROOT / file).is_file(), f"{block.where}: no such test: {cover}"
    assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{block.where}: no such test: {cover}"


def test_few_blocks_are_not_run():
    """Whoever exempts one more block says so here."""
    assert len(_exempt()) <= 14


def test_the_test_notices_a_wrong_option(tmp_path, environment):
    """An example with an option that does not exist fails, in every kind of block."""
    for language, text in (
        ("sh", "iotwin doctor --no-such-option\n"),
        ("console", "$ iotwin doctor --no-such-option\n"),
        ("python", "import no_such_module\n"),
        ("yaml", "a: [\n"),
    ):
        with pytest.raises((AssertionError, yaml.YAMLError)):
            _run_block(Block(ROOT / "README.md", 1, language, text), tmp_path, environment)
    with pytest.raises(AssertionError, match="prints no"):
        _run_block(Block(ROOT / "README.md", 1, "console", "$ echo yes\nsomething else\n"), tmp_path, environment)
