"""Finds how a script resumes by itself: its option for this, and the checkpoint that this option requires."""

import ast
import re
import shlex
from collections.abc import Collection
from pathlib import Path

from iotwin.common.untrusted_files import read_foreign
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES

CHECKPOINT = "{checkpoint}"
# Patterns of options that resume a run, the likeliest first.
_OPTIONS = (
    r"--(auto[-_]?)?resume", r"--resume[-_]?(from)?[-_]?(checkpoint|ckpt|path|file)?", r"--(continue|restart|restore)([-_].*)?",
    r"--(load|from|init[-_]from)[-_]?(checkpoint|ckpt|path)?", r"--(checkpoint|ckpt)[-_]?(path|file)?",
)  # fmt: skip
_FLAGS = ("store_true", "BooleanOptionalAction")
_NUMBERED_FOLDER = re.compile(r"(checkpoint|ckpt|step|epoch|iter)\w*?[-_]?\d+$", re.IGNORECASE)
_LATEST = re.compile(r"last|latest|newest", re.IGNORECASE)
_OTHER = re.compile(r"best|final|model_weights|averaged", re.IGNORECASE)


def resume_template(script: Path) -> str:
    """Return the arguments that make the script resume, with CHECKPOINT in place of its newest checkpoint's path.

    Returns "" if no option of the script names a checkpoint. Many scripts resume without an option.
    """
    options = _options(script)
    for pattern in _OPTIONS:
        for name, takes_value in options.items():
            if re.fullmatch(pattern, name):
                return f"{name} {CHECKPOINT}" if takes_value else name
    return ""


def _options(script: Path) -> dict[str, bool]:
    """Return the long options that the script defines with argparse; the value is True if the option takes a value."""
    found = {}
    for node in ast.walk(ast.parse(read_foreign(script, MOST_SOURCE_BYTES))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            actions = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "action"]
            takes_value = not any(flag in action for flag in _FLAGS for action in actions)
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    found[str(argument.value)] = takes_value
    return found


def resume_arguments(template: str, folder: Path, names: Collection[str]) -> list[str]:
    """Return the arguments for a run in `folder`; [] if they need a checkpoint and none of `names` exists there."""
    if CHECKPOINT not in template:
        return shlex.split(template)
    newest = newest_checkpoint(folder, names)
    return [word.replace(CHECKPOINT, str(newest)) for word in shlex.split(template)] if newest else []


def newest_checkpoint(folder: Path, names: Collection[str]) -> Path | None:
    """Return the newest file among `names` below `folder`; its parent folder instead if that folder's name has a number.

    Files called last or latest precede all others. Files called best or final are chosen only if nothing else exists.
    """
    paths = [folder / name for name in names if (folder / name).is_file()]
    latest = [path for path in paths if _LATEST.search(path.name)]
    usual = [path for path in paths if not _OTHER.search(path.name)]
    newest = max(latest or usual or paths, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
    if newest is None:
        return None
    above = newest.relative_to(folder).parents
    return next((folder / each for each in above if _NUMBERED_FOLDER.search(each.name)), newest)
