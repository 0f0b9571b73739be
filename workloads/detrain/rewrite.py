"""Inserts calls into the loops of a script: calls of the session, in memory, which keep line numbers; or marks, as a patch."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign, read_foreign_text
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES, CallLine, Instrumentation, SourceLine
from iotwin.workloads.detrain.source_analysis.dead_variables import dead_variables

SESSION = "__detrain__"  # name of the session in instrumented modules
MARKS = ("record_epoch", "record_batch")  # a script that imports these functions marks its loops itself
_EPOCH, _BATCH = "record_epoch()", "if not record_batch():"
_Loop = ast.For | ast.AsyncFor | ast.While
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def instrumented(source: bytes, path: Path, found: Instrumentation) -> ast.Module:
    """Return the module with calls of the session in those loops of `found` that are in this file.

    * `for x in LOADER:` becomes `for x in session.batches(session.opens(), LOADER):`, and the loop of epochs likewise.
    * A loop's body begins with `session.batch()`. If it returns True, after a resume, the variables that the loop assigns get
      their saved values.
    * The body of the loop of epochs is in a `try`, so that the session can leave the rest of a skipped epoch by an exception.
    * If the loop's body fetches the batch, the session is called with that batch, and can fetch batches without training on them.
      After that loop, `session.left()` leaves an epoch whose batches were skipped.

    Raises IotwinError if a line no longer holds a loop.
    """
    tree = ast.parse(source, str(path))
    here = _LoopLines(path)
    for loop, function in _loops(tree, None):
        if here.is_at(found.batch, loop):
            _instrument_batches(loop, function, tree, found, here)
    for loop, function in _loops(tree, None):
        if here.is_at(found.epoch, loop):
            _instrument(loop, "epoch", _assigned(loop, function))
            loop.body = [ast.Try(loop.body, [ast.ExceptHandler(_attribute("Skipped"), None, [ast.Pass()])], [], [])]
    here.check(found.batch, "batch")
    here.check(found.epoch, "epoch")
    return ast.fix_missing_locations(tree)


def batches_begin_without_gradients(found: Instrumentation) -> bool:
    """Return whether each iteration of the batch loop sets all gradients to zero.

    True if `zero_grad` is called, outside of any `if`, for each object whose `step` is called.
    """
    if found.batch is None:
        return False
    loop, _ = _loop_at(found.batch, _tree(found.batch.file))
    if loop is None:
        return False
    zeroed = {_receiver(call) for call in _calls(loop, "zero_grad", conditional=False)}
    stepped = {_receiver(call) for call in _calls(loop, "step", conditional=True)}
    return bool(zeroed) and stepped <= zeroed


def dead_at_batches(found: Instrumentation) -> frozenset[str]:
    """Return the variables that each iteration of the batch loop assigns before it reads them."""
    if found.batch is None:
        return frozenset()
    tree = _tree(found.batch.file)
    loop, function = _loop_at(found.batch, tree)
    return dead_variables(loop, function or tree) if loop is not None else frozenset()


def lines_run_again(found: Instrumentation) -> list[CallLine]:
    """Return the lines of the statements that a resumed run executes again: those of an epoch before its first batch."""
    if found.epoch is None or found.batch is None:
        return []
    trees = {file: _tree(file) for file in {found.epoch.file, found.batch.file}}
    (epoch, outer), (batch, inner) = (_loop_at(line, trees[line.file]) for line in (found.epoch, found.batch))
    if epoch is None or batch is None:
        return []
    before = [(found.epoch.file, each) for each in _before(epoch.body, batch, inner)]
    if inner is not outer and isinstance(inner, ast.FunctionDef):
        before += [(found.batch.file, each) for each in _before(inner.body, batch, inner)]
    return [CallLine(file, each.lineno, ast.unparse(each).splitlines()[0]) for file, each in before]


def _before(body: list[ast.stmt], loop: _Loop, function: ast.AST | None) -> list[ast.stmt]:
    """Return the statements of a body before the one that has the batch loop, or calls the function with the batch loop."""
    name = getattr(function, "name", None)

    def comes_to(statement: ast.stmt) -> bool:
        inside = list(ast.walk(statement))
        calls = (each.func for each in inside if isinstance(each, ast.Call))
        return any(each is loop or (isinstance(each, _Loop) and each.lineno == loop.lineno) for each in inside) or any(
            name is not None and name == getattr(call, "attr", getattr(call, "id", None)) for call in calls
        )

    at = next((index for index, each in enumerate(body) if comes_to(each)), len(body))
    return [each for each in body[:at] if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]


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
    at, column = _first_statement(line)
    changes.setdefault(line.file, {}).setdefault(at, []).extend(" " * column + each for each in words)


def _diff(path: Path, inserted: dict[int, list[str]], names: str) -> str:
    before = read_foreign_text(path, MOST_SOURCE_BYTES).splitlines(keepends=True)
    used = [name for name in names.split(", ") if any(name in each for lines in inserted.values() for each in lines)]
    at = _import_line(path)
    inserted = {at: [f"from iotwin.workloads.detrain import {', '.join(used)}"], **inserted}
    after: list[str] = []
    for number, line in enumerate(before, 1):
        after += [f"{each}\n" for each in inserted.get(number, ())]
        after.append(line)
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return "".join(difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}"))


def _first_statement(line: SourceLine) -> tuple[int, int]:
    """Return line and column of the first statement in the body of the loop at a line.

    Raises IotwinError if there is no loop, or its body is in the same line.
    """
    loop, _ = _loop_at(line, _tree(line.file))
    if loop is None or loop.body[0].lineno == line.line:
        raise IotwinError(f"{line.file}:{line.line}: is no loop with a body in lines below it; discover the script again")
    return loop.body[0].lineno, loop.body[0].col_offset


def _import_line(path: Path) -> int:
    """Return the line before which an import can be added: that of the file's first statement except `from __future__`."""
    body = _tree(path).body
    is_future = [isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in body]
    is_text = [isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in body]
    return next((each.lineno for each, *no in zip(body, is_future, is_text, strict=True) if not any(no)), 1)


def _tree(file: str | Path) -> ast.Module:
    return ast.parse(read_foreign(Path(file), MOST_SOURCE_BYTES))


def _loop_at(line: SourceLine, tree: ast.Module) -> tuple[_Loop | None, ast.AST | None]:
    """Return the loop at a line of a file's tree, and the function that it is in; (None, None) if there is none."""
    return next((each for each in _loops(tree, None) if each[0].lineno == line.line), (None, None))


class _LoopLines:
    """Checks that the loops of one file are at the lines where discovery found them."""

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, set[int]()

    def has(self, line: SourceLine | None) -> bool:
        return line is not None and Path(line.file) == self._path

    def is_at(self, line: SourceLine | None, loop: _Loop) -> bool:
        if line is None or not self.has(line) or loop.lineno != line.line:
            return False
        self._seen.add(line.line)
        return True

    def check(self, line: SourceLine | None, what: str) -> None:
        if line is not None and self.has(line) and line.line not in self._seen:
            raise IotwinError(f"{line.file}:{line.line}: is no loop, but the {what} loop was there; discover the script again")


def _loops(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[_Loop, ast.AST | None]]:
    """Yield all loops with the function that they are in, None at the top level of the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Loop):
            yield child, function
        yield from _loops(child, child if isinstance(child, _SCOPES) else function)


def _instrument_batches(
    loop: _Loop, function: ast.AST | None, tree: ast.Module, found: Instrumentation, here: _LoopLines
) -> None:
    around = next((outer for outer, own in _loops(tree, None) if own is function and here.is_at(found.epoch, outer)), loop)
    inside = {name for name in _assigned(around, function) if name not in _targets(loop)}
    data, skip = found.data, list[ast.stmt]()
    if data is not None and here.has(data) and data.line == loop.lineno and isinstance(loop, ast.While):
        skip = [ast.If(session_call("skips"), [ast.Continue()], [])]  # the condition gets the batches
    elif data is not None and here.has(data) and data.line != loop.lineno:
        update = found.update if here.has(found.update) else None
        skip = _instrument_data(loop, data.line, update.line if update else None)
    _instrument(loop, "batch", sorted(inside), skip)
    if skip:
        block = next(block for block in _all_blocks(tree) if loop in block)
        block.insert(block.index(loop) + 1, ast.copy_location(ast.Expr(session_call("left")), loop))


def _instrument_data(loop: _Loop, line: int, update: int | None) -> list[ast.stmt]:
    """Report the batch that the statement at `line` fetches to the session. Return statements that fetch without training.

    Returns [] if the statement that fetches the batch also contains the `update`.
    """
    block = next((block for block in _blocks(loop.body) if any(_spans(each, line) for each in block)), None)
    if block is None:
        return []
    at = next(index for index, each in enumerate(block) if _spans(each, line))
    names = sorted(_stored(block[at]))
    seen = ast.Expr(session_call("data", *(ast.Name(name, ast.Load()) for name in names)))
    if names:
        block.insert(at + 1, ast.copy_location(seen, block[at]))
    gets = next(each for each in loop.body if _spans(each, line))
    if update is not None and _spans(gets, update):
        return []
    return [ast.If(session_call("skips"), [gets, ast.Continue()], [])]


def _all_blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for each in ast.walk(node):
        yield from (block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(each, name, None), list))


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements in `body`, innermost first, then `body`."""
    for each in body:
        if not isinstance(each, _SCOPES):
            for name in ("body", "orelse", "finalbody"):
                yield from _blocks(getattr(each, name, None) or [])
            for handler in getattr(each, "handlers", []):
                yield from _blocks(handler.body)
    yield body


def _spans(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _instrument(loop: _Loop, kind: str, names: Sequence[str], skip: Sequence[ast.stmt] = ()) -> None:
    """Wrap the iterable of a `for`, and let the body begin with `skip` and `if session.KIND(): NAME = ...`."""
    if not isinstance(loop, ast.While):
        opened = session_call("opens", ast.Constant(kind))
        wrapped = "turns" if skip else {"batch": "batches", "epoch": "epochs"}[kind]
        loop.iter = ast.copy_location(session_call(wrapped, opened, loop.iter), loop.iter)
    restored: list[ast.stmt] = [
        ast.If(
            session_call("has", ast.Constant(name)),
            [ast.Assign([ast.Name(name, ast.Store())], session_call("take", ast.Constant(name)))],
            [],
        )
        for name in names
    ]
    first = ast.If(session_call(kind), restored or [ast.Pass()], [])
    loop.body[:0] = [ast.copy_location(each, loop.body[0]) for each in (*skip, first)]


def _assigned(loop: _Loop, function: ast.AST | None) -> list[str]:
    """Return the local variables that the loop assigns; none at the top level, whose variables are the module's."""
    if function is None or isinstance(function, ast.ClassDef):
        return []
    declared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    inner = {name for node in ast.walk(function) if isinstance(node, ast.Nonlocal) for name in node.names}
    return sorted((_stored(loop) | inner) - declared - {SESSION})


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a statement assigns in its own scope."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, _SCOPES):
        return set()
    if isinstance(node, ast.ExceptHandler):  # its name is deleted at its end
        return set[str]().union(*map(_stored, node.body))
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        walrus = [each.target for each in ast.walk(node) if isinstance(each, ast.NamedExpr)]
        return {each.id for each in walrus}
    return set[str]().union(*map(_stored, ast.iter_child_nodes(node)))


def _targets(loop: _Loop) -> set[str]:
    return set() if isinstance(loop, ast.While) else _stored(loop.target)


def _calls(node: ast.AST, method: str, conditional: bool) -> Iterator[ast.Call]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and not conditional:
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == method:
            yield child
        yield from _calls(child, method, conditional)


def _receiver(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[0]


def _attribute(name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(SESSION, ast.Load()), name, ast.Load())


def session_call(name: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of the session's method `name`."""
    return ast.Call(_attribute(name), list(arguments), [])
