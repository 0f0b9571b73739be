"""Measure whether a room's own tests notice a wrong sign, comparison, operator or constant.

python -m tests.perf.perf_mutations [COUNT [ROOM]...]   the first COUNT of the changes, of all rooms or of these
IOTWIN_MUTATION_SEED=2 python -m tests.perf...          other changes

A random change is made in a copy of the project. The test modules of its room run one after the other, the likeliest to notice
first. The change is noticed if a module fails that passes without it. It is missed if all modules pass, or if they use up its
processor time. A constant is doubled, then halved: it is noticed if the tests notice either, since a bound matters in one
direction. Tests that need root, PyTorch or a browser do not run.
"""

import ast
import itertools
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.perf.figures import Figure

_COUNT = int(os.environ.get("IOTWIN_MUTATIONS", "60"))
_SEED = int(os.environ.get("IOTWIN_MUTATION_SEED", "13"))
_LIMIT_CPU_S = float(os.environ.get("IOTWIN_MUTATION_CPU_S", "150"))  # of all modules together
_MODULE_S = 300.0  # on the clock, for what waits for ever
_ROOMS = {
    "tracesim": "tests/tracesim",
    "benchmark": "tests/benchmark",
    "datagen": "tests/datagen",
    "trace_store": "tests/trace_store",
}
_COPIED = (
    "benchmark", "common", "datagen", "iotwin", "tests", "trace_store", "trace_visuals", "tracesim", "tracing_tools",
    "workload_yaml", "workloads",
)  # fmt: skip
_ORDINARY = (0, 1, 2)  # numbers that count or index, besides those that are named: the changes of operators test these
_OTHERS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"), ast.BitAnd: ("&", "|"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
}  # fmt: skip


class Mutation(NamedTuple):
    """A change: the bytes from `begin` to `end` of a file become one of `texts`."""

    room: str
    path: str
    line: int
    begin: int
    end: int
    texts: tuple[str, ...]
    old: str
    names: tuple[str, ...]  # of the functions and classes around it

    def __str__(self) -> str:
        """Return the file, the line and the change."""
        return f"{self.path}:{self.line}: {self.old} becomes {' or '.join(text.strip() or 'nothing' for text in self.texts)}"


def mutations(room: str) -> list[Mutation]:
    """Return every change that can be made in `room`, in the order of its files and lines."""
    found: list[Mutation] = []
    for path in sorted((ROOT / room).rglob("*.py")):
        content = path.read_bytes()
        starts = [0]
        for line in content.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        tree = ast.parse(content)
        numbers = set(_decisive_numbers(tree))
        for node, names in _with_names(tree, ()):
            changes = _of_constant(node, content, starts) if node in numbers else _changes(node, content, starts)
            for begin, end, old, *new in changes:
                found.append(Mutation(room, str(path.relative_to(ROOT)), node.lineno, begin, end, tuple(new), old, names))
    return found


def _decisive_numbers(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the numbers that may decide something.

    Left out are indices, numbers in shifts (bits of a format, sizes of buffers), and, unless part of a named constant, arguments
    by keyword and the numbers that are _ORDINARY.
    """
    for node, named in _constants(tree, False):
        if type(node.value) in (int, float) and node.value and (named or node.value not in _ORDINARY):
            yield node


def _constants(node: ast.AST, named: bool) -> Iterator[tuple[ast.Constant, bool]]:
    """Yield the constants below `node`, and whether each is part of the value of a NAME in capitals."""
    is_shift = isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift)
    if is_shift or isinstance(node, ast.Subscript) or (isinstance(node, ast.keyword) and not named):
        return
    if isinstance(node, ast.Constant):
        yield node, named
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        named = any(name.id.isupper() for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    for child in ast.iter_child_nodes(node):
        yield from _constants(child, named)


def _of_constant(node: ast.expr, content: bytes, starts: list[int]) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield (begin, end, old, doubled, halved) of a number."""
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int | float)
    begin = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
    halved = node.value // 2 if isinstance(node.value, int) else node.value / 2
    yield begin, end, content[begin:end].decode(), repr(2 * node.value), repr(halved)


def _with_names(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[ast.expr, tuple[str, ...]]]:
    """Yield the expressions below `node` with the names of the functions and classes that they are in."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = (*names, node.name)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child, names
        yield from _with_names(child, names)


def _changes(node: ast.expr, content: bytes, starts: list[int]) -> Iterator[tuple[int, int, str, str]]:
    """Yield (begin, end, old, new) of the operators of `node` itself."""
    match node:
        case ast.BinOp():
            pairs = [(node.left, node.op, node.right)]
        case ast.Compare():
            pairs = list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
        case ast.UnaryOp(op=ast.USub()):
            begin = starts[node.lineno - 1] + node.col_offset
            yield begin, begin + 1, "-", ""
            return
        case _:
            return
    for left, operator, right in pairs:
        if type(operator) not in _OTHERS:
            continue
        old, new = _OTHERS[type(operator)]
        low = starts[(left.end_lineno or 1) - 1] + (left.end_col_offset or 0)
        between = content[low : starts[right.lineno - 1] + right.col_offset]
        if b"#" not in between and (at := between.find(old.encode())) >= 0:
            yield low + at, low + at + len(old), old, new


def chosen(count: int, rooms: Collection[str]) -> list[Mutation]:
    """Return `count` changes, as many of each room, the same in every run of the same code."""
    draw = random.Random(_SEED)
    by_room = [draw.sample(mutations(room), -(-count // len(rooms))) for room in rooms]
    return [mutation for group in zip(*by_room, strict=True) for mutation in group][:count]


def test_modules(mutation: Mutation) -> list[str]:
    """Return the test modules of the room, those first that name the changed module, function or class most often."""
    module = mutation.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    stem = module.rpartition(".")[2]
    words = [stem, *(name for name in mutation.names if not name.startswith("__"))]

    def relevance(path: Path) -> tuple[int, int]:
        text = path.read_text(encoding="utf-8")
        named = 10 * (module in text) + 10 * (stem in path.stem) + sum(text.count(word) for word in words)
        return -named, len(text)

    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / _ROOMS[mutation.room]).rglob("test_*.py"), key=relevance)]


def _run(copy: Path, module: str) -> int | None:
    """Return pytest's exit status for a module of the copy's tests; None when it did not end."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not root and not torch and not browser"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, module],
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=_MODULE_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _spent_cpu_s() -> float:
    """Return the processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def noticed(mutation: Mutation, copy: Path) -> str | None:
    """Return the test module that fails by the change, or that it keeps from ending; None when there is none."""
    target, spent = copy / mutation.path, 0.0
    content = target.read_bytes()
    for module, text in itertools.product(test_modules(mutation), mutation.texts):
        if spent > _LIMIT_CPU_S:
            return None
        before = _spent_cpu_s()
        target.write_bytes(content[: mutation.begin] + text.encode() + content[mutation.end :])
        try:
            status = _run(copy, module)
        finally:
            target.write_bytes(content)
        spent += _spent_cpu_s() - before
        if status not in (0, 5) and _passes_unchanged(copy, module):  # 5: nothing in it to run
            return module
    return None


@cache
def _passes_unchanged(copy: Path, module: str) -> bool:
    return _run(copy, module) == 0


def figures(count: int, rooms: Collection[str] = tuple(_ROOMS)) -> Iterator[Figure]:
    """Yield a figure for each change, then the share that was noticed."""
    selected = chosen(count, rooms)
    missed = []
    with tempfile.TemporaryDirectory(prefix="iotwin-mutations-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for mutation in selected:
            found = noticed(mutation, copy)
            if found is None:
                missed.append(str(mutation))
            yield Figure(f"mutation {mutation}", float(found is not None), detail=found or "not noticed")
    share = 1 - len(missed) / max(1, len(selected))
    yield Figure("mutations noticed by the room's own tests", share, 0.93, False, f"{len(selected)} made; missed: {len(missed)}")


def measure() -> list[Figure]:
    """Return the share that was noticed."""
    return list(figures(_COUNT))[-1:]


def main() -> None:
    """Print every change, then the share. `python -m tests.perf mutations` records the share of all rooms."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else _COUNT
    for figure in figures(count, sys.argv[2:] or tuple(_ROOMS)):
        print(figure.line(), flush=True)


if __name__ == "__main__":
    main()
