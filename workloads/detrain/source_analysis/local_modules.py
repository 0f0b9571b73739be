"""Parses a script and the modules that it imports from its own folders. Nothing is imported or run."""

import ast
from collections.abc import Iterator
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.foreign_files import read_foreign

MOST_SOURCE_BYTES = 16 << 20
_MOST_MODULES = 500
_INSTALLED = {"site-packages", "dist-packages"}


class SourceModule:
    """A parsed file. `name`: the dotted name that an import uses; `__main__` for the script.

    A folder without `__init__.py` is a module with an empty tree.
    """

    def __init__(self, path: Path, name: str, tree: ast.Module) -> None:
        self.path, self.name, self.tree = path, name, tree
        self._parents: dict[ast.AST, ast.AST] | None = None
        self.nodes = list(ast.walk(tree))

    @property
    def is_entry(self) -> bool:
        """True for the script itself."""
        return self.name == "__main__"

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node that directly contains `node`, None for the module's tree."""
        if self._parents is None:
            self._parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain `node`, innermost first."""
        while (above := self.parent(node)) is not None:
            yield above
            node = above

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains `node`, or that is `node`."""
        return next(each for each in (node, *self.ancestors(node)) if isinstance(each, ast.stmt))


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file. Raises IotwinError if it cannot be read or is no Python 3.11."""
    try:
        source = read_foreign(path, MOST_SOURCE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{path} does not exist; give the path of a training script") from None
    try:
        tree = ast.parse(source, str(path))
    except SyntaxError as error:
        raise IotwinError(f"{path}:{error.lineno or 1}: is no Python that this version reads ({error.msg})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise IotwinError(f"{path}: is no Python that this version reads ({error or 'nested too deeply'})") from None
    return tree


class LocalModules:
    """The script and the modules that it imports, directly or not, from the folders that Python searches for the script.

    `unread`: reasons why local files could not be parsed. Installed packages are never read.
    """

    def __init__(self, script: Path) -> None:
        self.unread: list[str] = []
        self._by_path: dict[Path, SourceModule | None] = {}
        self._found: dict[tuple[Path, str], SourceModule | None] = {}
        path = script.resolve()
        self.entry = SourceModule(path, "__main__", parse(path))
        self._by_path[path] = self.entry
        self._roots = [path.parent]
        above = path.parent
        while (above / "__init__.py").is_file():  # the script belongs to a package: `python -m package.script` imports from above
            above = above.parent
        self._roots += [above, *_added_roots(self.entry.tree, path.parent)]
        self._load_imports()

    def all(self) -> list[SourceModule]:
        """Return all modules that were parsed, the script first."""
        return [module for module in self._by_path.values() if module is not None]

    def named(self, name: str) -> SourceModule | None:
        """Return the local module with this dotted name; None if it is not local."""
        for root in dict.fromkeys(self._roots):
            if found := self._beneath(root, name):
                return found
        return None

    def imported(self, module: SourceModule, name: str | None, level: int) -> SourceModule | None:
        """Return the local module that `from NAME import` with `level` dots names in `module`; None if it is not local."""
        if not level:
            return self.named(name or "")
        folder = module.path if module.path.is_dir() else module.path.parent
        for _ in range(level - 1):
            folder = folder.parent
        return self._beneath(folder, name or "")

    def submodule(self, module: SourceModule, name: str) -> SourceModule | None:
        """Return the module `name` of a local package; None if there is none."""
        if module.path.is_dir():
            return self._beneath(module.path, name)
        return self._beneath(module.path.parent, name) if module.path.name == "__init__.py" else None

    def _beneath(self, folder: Path, name: str) -> SourceModule | None:
        if (folder, name) not in self._found:
            self._found[folder, name] = self._searched(folder, name)
        return self._found[folder, name]

    def _searched(self, folder: Path, name: str) -> SourceModule | None:
        path = folder
        for part in name.split(".") if name else []:
            if path.is_file():
                return None
            path = path / part if (path / part).is_dir() else path / f"{part}.py"
        if path.is_dir():
            path = path / "__init__.py" if (path / "__init__.py").is_file() else path
        return self._parsed(path, name)

    def _parsed(self, path: Path, name: str) -> SourceModule | None:
        path = path.resolve()
        if path in self._by_path:
            return self._by_path[path]
        if not path.exists() or _INSTALLED & set(path.parts) or len(self._by_path) >= _MOST_MODULES:
            return None
        self._by_path[path] = None
        try:
            tree = ast.Module([], []) if path.is_dir() else parse(path)
        except IotwinError as error:
            self.unread.append(str(error))
            return None
        module = SourceModule(path, name or path.parent.name, tree)
        self._by_path[path] = module
        return module

    def _load_imports(self) -> None:
        """Parse all modules that can be reached by imports."""
        done: set[Path] = set()
        while left := [module for module in self.all() if module.path not in done]:
            for module in left:
                done.add(module.path)
                for node in module.nodes:
                    self._load(module, node)

    def _load(self, module: SourceModule, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                for end in range(alias.name.count(".") + 1):
                    self.named(".".join(alias.name.split(".")[: end + 1]))
        elif isinstance(node, ast.ImportFrom):
            base = self.imported(module, node.module, node.level)
            for alias in node.names if base is not None else []:
                self.submodule(base, alias.name)  # type: ignore[arg-type]


def _added_roots(tree: ast.Module, folder: Path) -> list[Path]:
    """Return the folders that the script may add to `sys.path`, guessed from the constants in the calls that do so."""
    found: list[Path] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("sys.path.append", "sys.path.insert"):
            continue
        named = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        found += [folder / each for each in named if "\0" not in each and (folder / each).is_dir()] + [folder.parent]
    return found
