"""Runs a script as Python does, with some of its files rewritten in memory."""

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES
from iotwin.workloads.detrain.rewrite import SESSION


class ScriptProgram(NamedTuple):
    """The files to rewrite, what `rewrite(source, path)` makes of each, and the session that the rewritten code calls."""

    files: Collection[str]
    rewrite: Callable[[bytes, Path], Any]
    session: Any

    def execute(self, script: Path) -> None:
        """Run the script. Its exceptions are raised, and IotwinError if a file cannot be rewritten or compiled."""
        sys.meta_path.insert(0, _Finder(self))
        main = types.ModuleType("__main__")
        vars(main).update({"__file__": str(script), SESSION: self.session, "__builtins__": __builtins__})
        sys.modules["__main__"] = main
        exec(self.compiled(script), main.__dict__)

    def compiled(self, path: Path) -> types.CodeType:
        """Return the code of a file. Raises IotwinError if it is no Python of this version."""
        source = read_foreign(path, MOST_SOURCE_BYTES)
        tree = self.rewrite(source, path) if str(path) in self.files else source
        try:
            return compile(tree, str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise IotwinError(f"{path}: is no program of this Python: {error}") from None


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, program: ScriptProgram) -> None:
        super().__init__(name, path)
        self._program = program

    def exec_module(self, module: types.ModuleType) -> None:
        setattr(module, SESSION, self._program.session)
        exec(self._program.compiled(Path(self.path)), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds those modules of the user that are rewritten."""

    def __init__(self, program: ScriptProgram) -> None:
        self._program = program

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        origin = found.origin if found else None
        if origin is None or str(Path(origin).resolve()) not in self._program.files:
            return None
        loader = _Loader(name, str(Path(origin).resolve()), self._program)
        return importlib.util.spec_from_file_location(name, origin, loader=loader)
