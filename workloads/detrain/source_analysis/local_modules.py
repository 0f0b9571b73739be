"""Finds and parses a script and the modules that it imports from its own folders. Nothing is imported or run."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES

_MOST_MODULES = 2000
_MOST_FOLDERS_ABOVE = 3
_INSTALLED = {"site-packages", "dist-packages"}
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|(?:[^\n\\]|\\\n)*)|import[ \t]+([^\n]+))", re.MULTILINE
)
_ATTRIBUTE = re.compile(r"\.([^\W\d]\w*)")
_SHARED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_NAME = re.compile(r"[^\W\d]\w*")


class SourceModule:
    """A Python file, which is parsed at the first use of its tree. `name`: the dotted name that an import uses.

    The script itself is called `__main__`. A folder without `__init__.py` is a module with an empty tree.
    """

    def __init__(self, path: Path, name: str, source: bytes) -> None:
        self.path, self.name, self.source = path, name, source
        self.error: str | None = None

    @property
    def is_entry(self) -> bool:
        """True for the script itself."""
        return self.name == "__main__"

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. If the file is no valid Python, it is empty, and `error` is set."""
        try:
            return parsed(self.source, self.path)
        except IotwinError as error:
            self.error = str(error)
            return ast.Module([], [])

    @cached_property
    def text(self) -> str:
        """The source, in which invalid bytes are replaced."""
        return self.source.decode("utf-8", "replace")

    @cached_property
    def foreign_words(self) -> set[str]:
        """All names in the text that may belong to other modules: imported ones, and attributes, with and without the dot."""
        names = [names for _, names, _ in self.imports]
        imported = _NAME.findall(self.text if any("*" in each for each in names) else " ".join(names))
        attributes = _ATTRIBUTE.findall(self.text)
        return {*imported, *attributes, *(f".{name}" for name in attributes)}

    @cached_property
    def imports(self) -> list[tuple[str, str, str]]:
        """The import statements in the text: the module and the names of `from ... import ...`, or what `import` names."""
        return _IMPORT.findall(self.text)

    @cached_property
    def packages(self) -> set[str]:
        """The first names of all imported modules."""
        names = [base for base, _, _ in self.imports] + [
            name.strip() for _, _, plain in self.imports for name in plain.split(",")
        ]
        return {match[0] for match in map(_NAME.match, names) if match}

    @cached_property
    def imported_names(self) -> set[str]:
        """The names that import statements bind."""
        imports = [node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        return {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}

    @cached_property
    def _index(self) -> tuple[list[ast.AST], dict[ast.AST, ast.AST]]:
        """All nodes, each before what it contains; and the parent of each.

        Operators and the contexts of names (Load, Store) are left out: the parser uses one object for all of a kind.
        """
        nodes: list[ast.AST] = []
        parents: dict[ast.AST, ast.AST] = {}
        left: list[ast.AST] = [self.tree]
        while left:
            node = left.pop()
            nodes.append(node)
            children: list[ast.AST] = []
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    children += [each for each in value if isinstance(each, ast.AST) and not isinstance(each, _SHARED)]
                elif isinstance(value, ast.AST) and not isinstance(value, _SHARED):
                    children.append(value)
            for child in children:
                parents[child] = node
            left += reversed(children)
        return nodes, parents

    @cached_property
    def _ranges(self) -> dict[ast.AST, tuple[int, int]]:
        """By node: the range in `nodes` that consists of this node and all nodes inside of it."""
        nodes, parents = self._index
        sizes = dict.fromkeys(nodes, 1)
        for node in reversed(nodes[1:]):
            sizes[parents[node]] += sizes[node]
        return {node: (begin, begin + sizes[node]) for begin, node in enumerate(nodes)}

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return self._index[0]

    def within(self, node: ast.AST) -> list[ast.AST]:
        """Return the node and all that it contains."""
        begin, end = self._ranges[node]
        return self._index[0][begin:end]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node that directly contains `node`, None for the module's tree."""
        return self._index[1].get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain `node`, innermost first."""
        parents = self._index[1]
        while (above := parents.get(node)) is not None:
            yield above
            node = above

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains `node`, or that is `node`."""
        return next(each for each in (node, *self.ancestors(node)) if isinstance(each, ast.stmt))


class LocalModules:
    """The script and the modules that it imports, directly or not, from its own folder and from packages around it.

    Installed packages are never read. `checkout`: also read packages in the folders above, such as the library of which the
    script is an example. `skipped` is True if there are such packages, and they were not read.
    """

    def __init__(self, script: Path, checkout: bool = True) -> None:
        """Raises IotwinError if the script cannot be read or is no Python."""
        self._checkout, self.skipped = checkout, False
        self._by_path: dict[Path, SourceModule | None] = {}
        self._named: dict[str, SourceModule | None] = {}
        self._found: dict[tuple[Path, str], SourceModule | None] = {}
        path = script.resolve()
        self.entry = SourceModule(path, "__main__", _read(path))
        if not self.entry.tree.body and self.entry.error:
            raise IotwinError(self.entry.error)
        self._by_path[path] = self.entry
        self._roots = _search_folders(path, self.entry.tree)
        self._load_imports()

    def all(self) -> list[SourceModule]:
        """Return all modules that were found, the script first."""
        return [module for module in self._by_path.values() if module is not None]

    @cached_property
    def packages(self) -> set[str]:
        """The first names of all modules that any of the modules imports."""
        return set[str]().union(*(module.packages for module in self.all()))

    @property
    def errors(self) -> list[str]:
        """Reasons why files could not be parsed."""
        return [module.error for module in self.all() if module.error]

    def named(self, name: str) -> SourceModule | None:
        """Return the local module with this dotted name; None if it is not local."""
        if name not in self._named:
            self._named[name] = self._anywhere(name)
        return self._named[name]

    def _anywhere(self, name: str) -> SourceModule | None:
        for root in self._roots:
            if found := self._beneath(root, name):
                return found
        for above in list(self._roots[0].parents)[:_MOST_FOLDERS_ABOVE]:  # a package that was installed in place (pip install -e)
            for root in (above, above / "src"):
                if (root / name.partition(".")[0] / "__init__.py").is_file():
                    self.skipped |= not self._checkout
                    return self._beneath(root, name) if self._checkout else None
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
        if module.path.name == "__init__.py":
            return self._beneath(module.path.parent, name)
        return self._beneath(module.path, name) if module.path.is_dir() else None

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
        return self._loaded(path.resolve(), name)

    def _loaded(self, path: Path, name: str) -> SourceModule | None:
        if path in self._by_path:
            return self._by_path[path]
        if not path.exists() or _INSTALLED & set(path.parts) or len(self._by_path) >= _MOST_MODULES:
            return None
        self._by_path[path] = None
        try:
            source = b"" if path.is_dir() else _read(path)
        except IotwinError:
            return None
        self._by_path[path] = SourceModule(path, name or path.parent.name, source)
        return self._by_path[path]

    def _load_imports(self) -> None:
        """Find all modules that can be reached by imports. Imports are found in the text, so that few modules must be parsed."""
        done: set[Path] = set()
        while left := [module for module in self.all() if module.path not in done]:
            for module in left:
                done.add(module.path)
                for base, names, plain in module.imports:
                    self._load(module, base, names, plain)

    def _load(self, module: SourceModule, base: str, names: str, plain: str) -> None:
        for name in plain.split(","):
            parts = name.partition("#")[0].split()[:1]
            for end in range(len(parts[0].split("."))) if parts else ():
                self.named(".".join(parts[0].split(".")[: end + 1]))
        if base:
            level = len(base) - len(base.lstrip("."))
            package = self.imported(module, base.lstrip(".") or None, level)
            if package is not None:
                for name in _NAME.findall(names):
                    self.submodule(package, name)


def _read(path: Path) -> bytes:
    try:
        return read_foreign(path, MOST_SOURCE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{path} does not exist; give the path of a training script") from None


def parsed(source: bytes, path: Path) -> ast.Module:
    """Return the syntax tree of a Python file. Raises IotwinError with the line of the error if it is no valid Python."""
    try:
        return ast.parse(source, str(path))
    except SyntaxError as error:
        raise IotwinError(f"{path}:{error.lineno or 1}: is no Python that this version reads ({error.msg})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise IotwinError(f"{path}: is no Python that this version reads ({error or 'nested too deeply'})") from None


def _search_folders(script: Path, tree: ast.Module) -> list[Path]:
    """Return the folders in which Python searches modules for the script.

    They are the script's own folder, and the folder around its package, from which `python -m package.script` imports. Folders
    that the script adds to `sys.path` are guessed from the constants in such calls.
    """
    above = script.parent
    while (above / "__init__.py").is_file():
        above = above.parent
    found = [script.parent, above]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("sys.path.append", "sys.path.insert"):
            continue
        named = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        found += [script.parent / each for each in named if "\0" not in each and (script.parent / each).is_dir()]
        found.append(script.parent.parent)
    return list(dict.fromkeys(found))
