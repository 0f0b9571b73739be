"""Reads inst.info, the file in which the original DETrain stores the lines of a script's loops."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign_text
from iotwin.workloads.detrain.instrumentation import (
    MOST_SOURCE_BYTES,
    BatchSource,
    CallLine,
    Instrumentation,
    Kind,
    SourceLine,
    Wrapper,
    source_sha256,
)
from iotwin.workloads.detrain.source_analysis.local_modules import parsed
from iotwin.workloads.detrain.source_analysis.scopes import LOOPS

_MOST_BYTES = 1 << 20
_MOST_LINE = 10_000_000
_KINDS: dict[str, Kind] = {"ON_DATASET": "FOR_OVER_LOADER", "ON_CUSTOM": "NEXT_CALL"}


class _Place(NamedTuple):
    """A line that inst.info names. `calls`: the first call of the statement at that line."""

    file: Path
    line: int
    is_loop: bool
    call: str


def read_inst_info(path: Path) -> Instrumentation:
    """Convert a file inst.info of the original DETrain.

    The files that it names are searched in its own folder, then in the current directory. The confidence is low if a named line
    has no loop, since the original does not notice changes of a script. Raises IotwinError if inst.info or a file that it names
    cannot be read.
    """
    document = _literal(path)
    info = _section(document, "code_info", path)
    loader = _section(document, "dataloader", path)
    epoch = _place(info, "epoch", path)
    batch = _place(info, "loop", path)
    data = _place(info, "dl_call", path)
    update = _place(info, "update_call", path)
    reasons = [f"{each.file}:{each.line}: begins no loop; the script has changed" for each in (epoch, batch) if not each.is_loop]
    files = {str(each.file): source_sha256(each.file) for each in (epoch, batch, data, update)}
    module, function = info.get("wrapper_module"), info.get("wrapper_func")
    return Instrumentation(
        script=str(epoch.file),
        source_sha256=files[str(epoch.file)],
        sources=files,
        kind=_kind(document, path),
        epoch=SourceLine(str(epoch.file), epoch.line),
        batch=SourceLine(str(batch.file), batch.line),
        data=CallLine(str(data.file), data.line, data.call),
        update=CallLine(str(update.file), update.line, update.call),
        sinks=[CallLine(str(update.file), update.line, update.call)],
        wrapper=Wrapper(str(module), str(function)) if module and function else None,
        loader=BatchSource(_text(loader, "full_name", path), bool(loader.get("persistent", False))),
        confidence=0.3 if reasons else 0.9,
        reasons=reasons or [f"the lines are those of {path}"],
    )


def _literal(path: Path) -> Mapping[str, Any]:
    try:
        text = read_foreign_text(path, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{path} does not exist; give the inst.info of an original DETrain") from None
    try:
        document = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise IotwinError(f"{path}: is no dict literal, so it is no inst.info") from None
    if not isinstance(document, dict):
        raise IotwinError(f"{path}: is no dict literal, so it is no inst.info")
    return document


def _section(document: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    """Return a section of the document. If it is a list of loaders, as the original writes, return the first element."""
    section = document.get(name)
    if isinstance(section, list | tuple) and section:
        section = section[0]
    if not isinstance(section, dict):
        raise IotwinError(f"{path}: {name} is missing or no dict; give an inst.info of the original DETrain")
    return section


def _text(section: Mapping[str, Any], key: str, path: Path) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise IotwinError(f"{path}: {key} must be a text (got {str(value)[:100]!r})")
    return value


def _kind(document: Mapping[str, Any], path: Path) -> Kind:
    name = _text(_section(document, "loop_type", path), "type", path)
    if name not in _KINDS:
        raise IotwinError(f"{path}: loop_type must be ON_DATASET or ON_CUSTOM (got {name[:100]!r})")
    return _KINDS[name]


def _place(info: Mapping[str, Any], name: str, path: Path) -> _Place:
    file = _file(_text(info, f"{name}_file_name", path), path)
    value = info.get(f"{name}_line_no")
    digits = str(value) if isinstance(value, str | int) else ""
    if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(_MOST_LINE)) or int(digits) < 1:
        raise IotwinError(f"{path}: {name}_line_no must be a number of a line (got {str(value)[:100]!r})")
    line = int(digits)
    source = read_foreign_text(file, MOST_SOURCE_BYTES)
    if line > source.count("\n") + 1:
        raise IotwinError(f"{path}: {file} has no line {line}; the script has changed")
    found = [each for each in ast.walk(parsed(source.encode(), file)) if isinstance(each, ast.stmt) and each.lineno == line]
    calls = [each for statement in found[:1] for each in ast.walk(statement) if isinstance(each, ast.Call)]
    return _Place(file, line, any(isinstance(each, LOOPS) for each in found), ast.unparse(calls[0]) if calls else "")


def _file(name: str, path: Path) -> Path:
    for folder in (path.parent, Path()):
        file = (folder / name).resolve()
        if file.is_file():
            return file
    raise IotwinError(f"{path}: {name} is neither in the folder of inst.info nor in the current directory; run iotwin there")
