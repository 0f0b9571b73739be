"""Makes a patch that adds the marks of markers.py to a script, for users who prefer that to `iotwin detrain run`'s rewriting."""

import difflib
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.foreign_files import read_foreign_text
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES, Instrumentation, SourceLine
from iotwin.workloads.detrain.rewrite import first_statement, import_line

_EPOCH, _BATCH = "record_epoch()", "if not record_batch():"


def marks_patch(found: Instrumentation) -> str:
    """Return the diff that adds the marks, for `patch -p1` in the current directory.

    Raises IotwinError if a line of `found` no longer holds a loop.
    """
    if found.batch is None:
        raise IotwinError(f"{found.script}: has no loop that marks could be put into")
    changes: dict[str, dict[int, list[str]]] = {}
    _insert(changes, found.batch, [_BATCH, "    continue"])
    names = "record_batch"
    if found.epoch is not None:
        _insert(changes, found.epoch, [_EPOCH])
        names = "record_batch, record_epoch"
    return "".join(_diff(Path(file), inserted, names) for file, inserted in changes.items())


def _insert(changes: dict[str, dict[int, list[str]]], line: SourceLine, words: list[str]) -> None:
    at, column = first_statement(Path(line.file), line.line)
    changes.setdefault(line.file, {}).setdefault(at, []).extend(" " * column + each for each in words)


def _diff(path: Path, inserted: dict[int, list[str]], names: str) -> str:
    before = read_foreign_text(path, MOST_SOURCE_BYTES).splitlines(keepends=True)
    used = [name for name in names.split(", ") if any(name in each for lines in inserted.values() for each in lines)]
    at = import_line(path)
    inserted = {at: [f"from iotwin.workloads.detrain import {', '.join(used)}"], **inserted}
    after: list[str] = []
    for number, line in enumerate(before, 1):
        after += [f"{each}\n" for each in inserted.get(number, ())]
        after.append(line)
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return "".join(difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}"))
