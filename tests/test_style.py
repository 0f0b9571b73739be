"""The rules of CONTRIBUTING's section "Words": `python -m tests.test_style ROOM` lists where a room breaks them."""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

# The longest folder that contains a file is its room. Of two classes of one name, the one of the later room breaks the rule.
ROOMS = (
    "common",
    "trace_store",
    "workload_yaml",
    "tracing_tools",
    "datagen",
    "workloads",
    "benchmark",
    "benchmark/emulator",
    "tracesim",
    "trace_visuals",
    "iotwin",
    "benchmark/fit",
    "docs",
)
# Rooms that break a rule today. A room that keeps the rule must not be listed.
NOT_YET: dict[str, set[str]] = {
    "phrases": set(),
    "sentences": set(),
    "cells": set(),
    "lines": set(),
    "classes": set(),
}
MOST_WORDS, MOST_WORDS_OF_A_CELL, MOST_COLUMNS = 35, 30, 130

# The first column of CONTRIBUTING's table, as far as a search can tell the private sense from the usual one.
_PHRASES = (
    r"tells?", r"told", r"telling", r"says?", r"said", r"foretells?", r"beside", r"of its own", r"of their own", r"wants",
    r"looks? at", r"looked at", r"looking at", r"hands? over", r"handed over", r"handing over", r"made-up", r"by who(?:m)? \w+",
    r"untraced neighbours?", r"proves? nothing", r"once,? for all", r"what (?:most |an? |the |each )?\w+ asks? for",
)  # fmt: skip
BANNED = re.compile(rf"\b(?:{'|'.join(_PHRASES)})\b".replace(" ", r"\s+"), re.IGNORECASE)
# (file, phrase) in which a banned phrase has its usual meaning, each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}
COMMENTED = {".c": "//", ".h": "//", ".js": "//", ".css": "", ".sh": "#", ".bt": "//"}


def room_of(path: Path) -> str:
    """Return the room of a file by its path relative to the repository; pages outside of every room belong to docs."""
    return max((room for room in ROOMS if path.is_relative_to(room)), key=len, default="docs")


@cache
def files(room: str) -> tuple[Path, ...]:
    """Return the paths, relative to the repository, of a room's programs and pages."""
    base = list(ROOT.glob("*.md")) if room == "docs" else []
    kinds = (".py", ".md", *COMMENTED)
    found = [path for path in (ROOT / room).rglob("*") if path.suffix in kinds and path.is_file()]
    return tuple(path for path in sorted(each.relative_to(ROOT) for each in [*base, *found]) if room_of(path) == room)


@cache
def text_of(path: Path) -> str:
    """Return a file's text without the section of CONTRIBUTING that quotes what not to write."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path == Path("CONTRIBUTING.md"):
        before, _, rest = text.partition("\n## Words\n")
        quoted, _, after = rest.partition("\n## ")
        return before + "\n" * (quoted.count("\n") + 3) + after
    return text


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring of a module."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            yield node.body[0].lineno, inspect.cleandoc(node.body[0].value.value)  # type: ignore[attr-defined]


def comments(lines: list[str], columns: dict[int, int], mark: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of `lines`, of which `columns` maps the index to the column of the mark; adjacent ones are joined."""
    start, joined = 0, ""
    for index, column in sorted(columns.items()):
        text = lines[index][column + len(mark) :]
        if joined and index == start + joined.count("\n") + 1 and not lines[index][:column].strip():
            joined += f"\n{text}"
            continue
        if joined:
            yield start + 1, joined
        start, joined = index, text
    if joined:
        yield start + 1, joined


def comments_of_python(path: Path) -> Iterator[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(text_of(path)).readline)
    places = {token.start[0] - 1: token.start[1] for token in tokens if token.type == tokenize.COMMENT}
    return comments(text_of(path).splitlines(), places, "#")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of all that a file holds for readers: docstrings, comments, messages; pages whole."""
    if path.suffix != ".py":
        mark = COMMENTED.get(path.suffix)
        # A line's mark is blanked, so that a phrase is found where it wraps.
        yield 1, re.sub(rf"^\s*(?:{re.escape(mark)}|\*)", " ", text_of(path), flags=re.M) if mark else text_of(path)
        return
    yield from comments_of_python(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\s", node.value.strip()):
            yield node.lineno, node.value


def broken_phrases(room: str) -> Iterator[tuple[Path, int, str]]:
    for path in files(room):
        for first, text in texts(path):
            for found in BANNED.finditer(text):
                phrase = " ".join(found.group().lower().split())
                if (str(path), phrase) not in EXCEPTIONS:
                    yield path, first + text.count("\n", 0, found.start()), f'banned phrase "{phrase}"'


def sentences(docstring: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a docstring, each with the line within it.

    A blank line ends a sentence, and so does a line that begins a list item, `name: meaning`, a row of a table, or code.
    """
    line = 0
    for paragraph in re.split(
        r"(\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|\n(?=\s*\w+: )|\n(?=\s*\S.*\S {2,}\S)|\n(?= {4}|\|))", docstring
    ):
        for sentence in re.split(r"(?<=[.!?])(\s+)", paragraph):
            if sentence.strip():
                yield line, sentence
            line += sentence.count("\n")


def broken_sentences(room: str) -> Iterator[tuple[Path, int, str]]:
    for path in files(room):
        for first, text in docstrings(path) if path.suffix == ".py" else ():
            for line, sentence in sentences(text):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                if len(words) > MOST_WORDS:
                    yield path, first + line, f"sentence of {len(words)} words: {' '.join(words[:6])} ..."


def page_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are no code."""
    in_code = False
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        elif not in_code:
            yield number, line


def broken_cells(room: str) -> Iterator[tuple[Path, int, str]]:
    for path in files(room):
        for number, line in page_lines(path) if path.suffix == ".md" else ():
            for cell in re.split(r"(?<!\\)\|", line) if line.lstrip().startswith("|") else ():
                if (count := len(cell.split())) > MOST_WORDS_OF_A_CELL:
                    yield path, number, f"table cell of {count} words: {' '.join(cell.split()[:6])} ..."


def broken_lines(room: str) -> Iterator[tuple[Path, int, str]]:
    """Yield long comments of programs, and long lines of pages except tables and markers. ruff checks Python's lines."""
    for path in files(room):
        mark = COMMENTED.get(path.suffix)
        lines = page_lines(path) if path.suffix == ".md" else enumerate(text_of(path).splitlines(), 1)
        for number, line in lines if path.suffix != ".py" else ():
            is_prose = (
                line.lstrip().startswith((mark or "*", "*", "/*"))
                if mark is not None
                else not line.lstrip().startswith(("|", "<!--"))
            )
            if is_prose and len(line) > MOST_COLUMNS:
                yield path, number, f"line of {len(line)} characters"


@cache
def classes() -> dict[str, list[tuple[Path, int]]]:
    """Return where each class is defined at the top of a module, in the order of ROOMS."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for path in (path for room in ROOMS for path in files(room) if path.suffix == ".py"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((path, node.lineno))
    return found


def broken_classes(room: str) -> Iterator[tuple[Path, int, str]]:
    for name, places in classes().items():
        for path, line in places[1:]:
            if room_of(path) == room:
                yield path, line, f"class {name} is also defined in {places[0][0]}"


RULES = {
    "phrases": broken_phrases,
    "sentences": broken_sentences,
    "cells": broken_cells,
    "lines": broken_lines,
    "classes": broken_classes,
}


def test_every_file_for_readers_has_one_room():
    listed = [path for room in ROOMS for path in files(room)]
    assert (
        len(listed) == len(set(listed))
        and Path("README.md") in listed
        and Path("benchmark/fit/__init__.py") in files("benchmark/fit")
    )


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("rule", RULES)
def test_rooms_keep_the_rules_of_style(rule, room):
    found = [f"{path}:{line}: {what}" for path, line, what in RULES[rule](room)]
    if room in NOT_YET[rule]:
        assert found, f"{room} keeps the rule on {rule} now: remove it from NOT_YET"
    else:
        assert not found


def test_every_exception_is_needed():
    used = {
        (str(path), " ".join(found.group().lower().split()))
        for path in {Path(name) for name, _ in EXCEPTIONS}
        for _, text in texts(path)
        for found in BANNED.finditer(text)
    }
    assert EXCEPTIONS.keys() <= used


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("the depth is told by waits", ["told"]), ("a thread beside\n    the loop", ["beside"]), ("a file besides", []),
        ("a folder of its\nown", ["of its\nown"]), ("What most reads ask for", ["What most reads ask for"]), ("teller", []),
    ],
)  # fmt: skip
def test_banned_phrases_are_found_where_they_wrap(text, phrases):
    assert BANNED.findall(text) == phrases


def test_a_sentence_ends_at_a_stop_a_paragraph_or_a_list_item():
    text = "One two. Three\nfour.\n\n* five six\n* seven"
    assert [(line, " ".join(sentence.split())) for line, sentence in sentences(text)] == [
        (0, "One two."), (0, "Three four."), (3, "* five six"), (4, "* seven"),
    ]  # fmt: skip


def test_a_comment_over_two_lines_is_one():
    lines = ["x = 1  # a", "# b of its", "# own", "y = 2"]
    assert list(comments(lines, {0: 7, 1: 0, 2: 0}, "#")) == [(1, " a\n b of its\n own")]


if __name__ == "__main__":
    chosen = [room.strip("/") for room in sys.argv[1:]] or list(ROOMS)
    if unknown := set(chosen) - set(ROOMS):
        sys.exit(f"tests.test_style: {', '.join(sorted(unknown))}: no such room; the rooms are {', '.join(ROOMS)}")
    for each in chosen:
        for broken in RULES.values():
            for file, number, problem in broken(each):
                print(f"{file}:{number}: {problem}")
