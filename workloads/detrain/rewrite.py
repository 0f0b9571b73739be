"""Inserts calls of the session into the loops of a script, in memory. Line numbers remain those of the file."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.foreign_files import read_foreign
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES, CallLine, Instrumentation, SourceLine
from iotwin.workloads.detrain.source_analysis.dead_variables import dead_variables

SESSION = "__detrain__"  # name of the session in instrumented modules
MARKS = ("record_epoch", "record_batch")  # a script that imports these marks its loops itself
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
    tree = ast.parse(read_foreign(Path(found.batch.file), MOST_SOURCE_BYTES))
    loop = next((each for each, _ in _loops(tree, None) if each.lineno == found.batch.line), None)
    if loop is None:
        return False
    zeroed = {_receiver(call) for call in _calls(loop, "zero_grad", conditional=False)}
    stepped = {_receiver(call) for call in _calls(loop, "step", conditional=True)}
    return bool(zeroed) and stepped <= zeroed


def dead_at_batches(found: Instrumentation) -> frozenset[str]:
    """Return the variables that each iteration of the batch loop assigns before it reads them."""
    if found.batch is None:
        return frozenset()
    tree = ast.parse(read_foreign(Path(found.batch.file), MOST_SOURCE_BYTES))
    loops = ((loop, function) for loop, function in _loops(tree, None) if loop.lineno == found.batch.line)
    return next((dead_variables(loop, function or tree) for loop, function in loops), frozenset())


def lines_run_again(found: Instrumentation) -> list[CallLine]:
    """Return the lines of the statements that a resumed run executes again: those of an epoch before its first batch."""
    if found.epoch is None or found.batch is None:
        return []
    trees = {file: ast.parse(read_foreign(Path(file), MOST_SOURCE_BYTES)) for file in {found.epoch.file, found.batch.file}}
    at = {
        line: next((each for each in _loops(trees[line.file], None) if each[0].lineno == line.line), None)
        for line in (found.epoch, found.batch)
    }
    epoch, batch = at[found.epoch], at[found.batch]
    if epoch is None or batch is None:
        return []
    before = [(found.epoch.file, each) for each in _before(epoch[0].body, batch)]
    if batch[1] is not epoch[1] and isinstance(batch[1], ast.FunctionDef):
        before += [(found.batch.file, each) for each in _before(batch[1].body, batch)]
    return [CallLine(file, each.lineno, ast.unparse(each).splitlines()[0]) for file, each in before]


def _before(body: list[ast.stmt], batch: tuple[_Loop, ast.AST | None]) -> list[ast.stmt]:
    """Return the statements of a body before the one with the batch loop, or with a call of the function that it is in."""
    loop, function = batch
    name = getattr(function, "name", None)

    def comes_to(statement: ast.stmt) -> bool:
        inside = list(ast.walk(statement))
        calls = (each.func for each in inside if isinstance(each, ast.Call))
        return any(each is loop or (isinstance(each, _Loop) and each.lineno == loop.lineno) for each in inside) or any(
            name is not None and name == getattr(call, "attr", getattr(call, "id", None)) for call in calls
        )

    at = next((index for index, each in enumerate(body) if comes_to(each)), len(body))
    return [each for each in body[:at] if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]


def first_statement(path: Path, line: int) -> tuple[int, int]:
    """Return line and column of the first statement in the body of the loop at `line` of a file.

    Raises IotwinError if there is no loop, or its body is in the same line.
    """
    tree = ast.parse(read_foreign(path, MOST_SOURCE_BYTES))
    loop = next((each for each, _ in _loops(tree, None) if each.lineno == line), None)
    if loop is None or loop.body[0].lineno == line:
        raise IotwinError(f"{path}:{line}: is no loop with a body in lines below it; discover the script again")
    return loop.body[0].lineno, loop.body[0].col_offset


def import_line(path: Path) -> int:
    """Return the line before which an import can be added: that of the file's first statement except `from __future__`."""
    body = ast.parse(read_foreign(path, MOST_SOURCE_BYTES)).body
    is_future = [isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in body]
    is_text = [isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in body]
    return next((each.lineno for each, *no in zip(body, is_future, is_text, strict=True) if not any(no)), 1)


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
        skip = [ast.If(_call("skips"), [ast.Continue()], [])]  # the condition gets the batches
    elif data is not None and here.has(data) and data.line != loop.lineno:
        update = found.update if here.has(found.update) else None
        skip = _instrument_data(loop, data.line, update.line if update else None)
    _instrument(loop, "batch", sorted(inside), skip)
    if skip:
        block = next(block for block in _all_blocks(tree) if loop in block)
        block.insert(block.index(loop) + 1, ast.copy_location(ast.Expr(_call("left")), loop))


def _instrument_data(loop: _Loop, line: int, update: int | None) -> list[ast.stmt]:
    """Report the batch that the statement at `line` fetches to the session. Return statements that fetch without training.

    Returns [] if the statement that fetches the batch also contains the `update`.
    """
    block = next((block for block in _blocks(loop.body) if any(_spans(each, line) for each in block)), None)
    if block is None:
        return []
    at = next(index for index, each in enumerate(block) if _spans(each, line))
    names = sorted(_stored(block[at]))
    seen = ast.Expr(_call("data", *(ast.Name(name, ast.Load()) for name in names)))
    if names:
        block.insert(at + 1, ast.copy_location(seen, block[at]))
    gets = next(each for each in loop.body if _spans(each, line))
    if update is not None and _spans(gets, update):
        return []
    return [ast.If(_call("skips"), [gets, ast.Continue()], [])]


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
    """Wrap what a `for` loops over, and let the body begin with `skip` and `if session.KIND(): NAME = ...`."""
    if not isinstance(loop, ast.While):
        opened = _call("opens", ast.Constant(kind))
        wrapped = "turns" if skip else {"batch": "batches", "epoch": "epochs"}[kind]
        loop.iter = ast.copy_location(_call(wrapped, opened, loop.iter), loop.iter)
    restored: list[ast.stmt] = [
        ast.If(
            _call("has", ast.Constant(name)),
            [ast.Assign([ast.Name(name, ast.Store())], _call("take", ast.Constant(name)))],
            [],
        )
        for name in names
    ]
    first = ast.If(_call(kind), restored or [ast.Pass()], [])
    loop.body[:0] = [ast.copy_location(each, loop.body[0]) for each in (*skip, first)]


def _assigned(loop: _Loop, function: ast.AST | None) -> list[str]:
    """Return the variables of the function that the loop assigns; none at the top level, whose variables are the module's."""
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


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_attribute(name), list(arguments), [])
