"""Finds which script a Python command line runs, and asks that interpreter which version of code it accepts."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import IotwinError

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_TAKE_VALUE = "cmWX"  # Python's options that take a value
_LONGEST_S = 60
_PROBE = (
    "import sys, _frozen_importlib_external as e; f = sys.flags;"
    "print(e.MAGIC_NUMBER.hex(), sys.implementation.cache_tag, f.optimize, int(getattr(f, 'safe_path', f.isolated)),"
    " f.ignore_environment)"
)


@dataclass(frozen=True)
class PythonCommand:
    """A command that runs a script, or a `module` by -m, with `arguments`. `options`: options of Python itself, except -m."""

    program: str
    options: list[str]
    script: str | None
    module: str | None
    arguments: list[str]


@dataclass(frozen=True)
class Interpreter:
    """Properties of the Python that runs the script. `safe_path`: it does not search modules in the script's folder.

    `magic` and `tag` identify the version of compiled code that it accepts.
    """

    magic: bytes
    tag: str
    optimize: int
    safe_path: bool
    ignores_environment: bool


def python_command(words: Sequence[str]) -> PythonCommand:
    """Parse a command. Raises IotwinError with the reason if it does not run a script or module with Python."""
    if not words or not is_python(words[0]):
        raise IotwinError(f"{words[0] if words else 'nothing'} is not Python; write: python SCRIPT ARGUMENTS")
    options: list[str] = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            options += [word, *([rest.pop(0)] if word == "--check-hash-based-pycs" and rest else [])]
            continue
        at = next((index for index, letter in enumerate(word) if index and letter in _TAKE_VALUE), None)
        if at is None or word[at] in "WX":
            options += [word, *([rest.pop(0)] if at == len(word) - 1 and rest else [])]
            continue
        value = word[at + 1 :] or (rest.pop(0) if rest else "")
        if word[at] == "c":
            raise IotwinError("the program is given by -c, not in a file")
        return PythonCommand(words[0], [*options, *([word[:at]] if at > 1 else [])], None, value, rest)
    if not rest or rest[0] == "-":
        raise IotwinError("the command names no script")
    if any("x" in option[1:] for option in options if not option.startswith(("--", "-W", "-X"))):
        raise IotwinError("with -x, Python does not run the whole script")
    return PythonCommand(words[0], options, rest[0], None, rest[1:])


def is_python(program: str) -> bool:
    """Return whether `program` is a Python, by its name or because it is the interpreter of this process."""
    found = shutil.which(program)
    same = found is not None and Path(found).resolve() == Path(sys.executable).resolve()
    return same or _PYTHON.fullmatch(Path(program).name) is not None


def interpreter_of(command: PythonCommand) -> Interpreter:
    """Run the command's Python with its options, and return its properties. Raises IotwinError if it cannot be run."""
    try:
        words = [command.program, *command.options, "-S", "-c", _PROBE]
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LONGEST_S, check=True)
        magic, tag, optimize, safe_path, ignores = done.stdout.decode().split()
        return Interpreter(bytes.fromhex(magic), tag, int(optimize), safe_path != "0", ignores != "0")
    except (OSError, subprocess.SubprocessError, ValueError):
        raise IotwinError(f"{command.program} cannot be asked for its version") from None


def module_file(module: str, python: Interpreter) -> Path:
    """Return the file that Python runs for -m `module`, if it is in the current folder or on PYTHONPATH.

    Raises IotwinError if it is in neither, like an installed package.
    """
    folders = [] if python.safe_path else [Path.cwd()]
    if not python.ignores_environment:
        folders += [Path.cwd() / each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    *parents, name = module.split(".")
    for folder in folders:
        at = folder.joinpath(*parents)
        is_package = (at / name / "__init__.py").is_file()
        for path in (at / name / "__main__.py",) if is_package else (at / f"{name}.py", at / name / "__main__.py"):
            if path.is_file():
                return path
        if is_package:
            break
    raise IotwinError(f"the module {module} is in no file of the current folder or of PYTHONPATH")
