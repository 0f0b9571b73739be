"""Finds the line of the script that a call comes from: the innermost frame outside of installed packages."""

import functools
import site
import sys
import sysconfig
import types
from pathlib import Path
from typing import NamedTuple

_PATHS = sysconfig.get_paths()
_STANDARD = (_PATHS["stdlib"], _PATHS["platstdlib"])
_PACKAGES = (_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages())


def _folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple({f"{Path(each).resolve()}/" for each in paths})


_SEARCHED = tuple(f"{each}/" for each in (*_STANDARD, *_PACKAGES))
_STANDARD_FOLDERS = _folders(_STANDARD)
_WORKLOADS = Path(__file__).resolve().parents[2]
# The folders of iotwin, except its training jobs, which count as scripts.
_IOTWIN = Path(str(sys.modules["iotwin"].__file__)).parent
_ROOMS = [each for each in _IOTWIN.iterdir() if each.is_dir()]
_OWN = (
    *(str(folder / name) for folder in {_WORKLOADS, _IOTWIN / "workloads"} for name in ("detrain", "state", "policies")),
    *(str(each) for each in _ROOMS if each.resolve() != _WORKLOADS),
)
_PACKAGE_FOLDERS = _folders((*_PACKAGES, *_OWN))
_NEVER_SCRIPTS = ("<", *_SEARCHED, *(f"{each}/" for each in _OWN), *_PACKAGE_FOLDERS)


class Inside(NamedTuple):
    """A function of a package that the script called, directly or not."""

    file: str
    function: str


class ScriptLine(NamedTuple):
    """A line of the script, from 1. `inside`: functions of packages between this line and the current call, outermost first."""

    file: str
    line: int
    inside: tuple[Inside, ...]


def script_line(frame: types.FrameType | None) -> ScriptLine | None:
    """Return the script's line that is executing in `frame` or called it; None if no frame belongs to the script."""
    inside: list[Inside] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if is_script(file):
            return ScriptLine(file, frame.f_lineno, tuple(reversed(inside)))
        inside.append(Inside(file, frame.f_code.co_name))
        frame = frame.f_back
    return None


@functools.cache
def is_script(file: str) -> bool:
    """Return whether a source file belongs to the script: it is neither in an installed package nor in the standard library."""
    # Most files are where Python searches for packages, or iotwin's own; resolving the paths of thousands takes long.
    if not file or file.startswith(_NEVER_SCRIPTS):
        return False
    return not _resolved(file).startswith((*_STANDARD_FOLDERS, *_PACKAGE_FOLDERS))


@functools.cache
def is_standard(file: str) -> bool:
    """Return whether a source file belongs to the standard library."""
    return _resolved(file).startswith(_STANDARD_FOLDERS) and not _resolved(file).startswith(_PACKAGE_FOLDERS)


@functools.cache
def _resolved(file: str) -> str:
    return str(Path(file).resolve())
