"""The documentation as its tests read it: pages, fenced blocks, the markers above them, links."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# <!-- not run: REASON; tests/x.py::test_y -->   the block is not run, and the test (or script) named covers it
# <!-- exit status: 2 -->                         the block's last command ends with this status
# <!-- file: dlio.yaml -->                        the block is this file of the page's directory
_MARKER = re.compile(r"<!-- (?P<key>not run|exit status|file): (?P<value>.+?) -->")
_FENCE = re.compile(r"^```(?P<language>\w*)\s*$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int  # of its first line of content, from 1
    language: str
    text: str
    markers: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of the page in order."""
    found: list[Block] = []
    current: Block | None = None
    markers: dict[str, str] = {}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if current is not None:
            if fence:
                found.append(current)
                current = None
            else:
                current.text += line + "\n"
        elif fence:
            current = Block(page, number + 1, fence["language"], "", markers)
            markers = {}
        elif marker := _MARKER.fullmatch(line.strip()):
            markers[marker["key"]] = marker["value"]
        elif line.strip():
            markers = {}  # a marker belongs to the block right below it
    assert current is None, f"{page}: a fence is not closed"
    return found


def prose(page: Path) -> list[tuple[int, str]]:
    """Return the lines outside fenced blocks, with their numbers."""
    inside, lines = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append((number, line))
    return lines


def links(page: Path) -> list[tuple[int, str]]:
    """Return the targets of the page's links and pictures, with their line numbers."""
    return [(number, match["target"]) for number, line in prose(page) for match in _LINK.finditer(line)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub makes them."""
    titles = [line.lstrip("#").strip() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower().replace("`", "")).replace(" ", "-") for title in titles}
