"""Builds the program that a job runs in place of its script, to log its phases. The program is never a file on disk."""

import ast
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Any, cast

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.discover import discover
from iotwin.workloads.detrain.instrumentation import KERAS_FIT, SURE, Instrumentation, SourceLine
from iotwin.workloads.detrain.phases.other_phases import label_evaluations, label_fits, label_saves
from iotwin.workloads.detrain.phases.python_command import interpreter_of, module_file, python_command
from iotwin.workloads.detrain.rewrite import SESSION, instrumented
from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules, SourceModule

_HEADER = bytes(12)  # follows the magic number of a .pyc file: no flags, time or size
_LOGS_ITSELF = "mllog"  # a source with this word, in upper or lower case, logs phases itself
_WORDS = {"no_grad", "inference_mode", "save"}  # only modules with one of these words may evaluate or save
_PACKAGE = __name__.rpartition(".")[0]


def _code_of(module: str) -> bytes:
    """Return the marshalled code of a module of this package. Its file name is one for which Python searches no source."""
    name = f"{_PACKAGE}.{module}"
    spec = importlib.util.find_spec(name)
    source = cast(InspectLoader, spec.loader if spec else None).get_source(name) or ""
    return marshal.dumps(compile(source, f"<{name}>", "exec", dont_inherit=True))


# Read at import: later, this process may run as a user who cannot read iotwin's files.
_SESSION, _START = _code_of("light_session"), _code_of("start")


@dataclass(frozen=True)
class LabelledCommand:
    """A command whose job logs its phases. The job must have `program` open at the descriptor that `words` name."""

    words: list[str]
    program: bytes
    note: str


@dataclass
class _LabelledModules:
    """The instrumented modules by path, including the script, and the lines of labelled evaluations and saves."""

    trees: dict[Path, ast.Module] = field(default_factory=dict)
    sources: dict[Path, bytes] = field(default_factory=dict)
    evaluations: list[SourceLine] = field(default_factory=list)
    saves: list[SourceLine] = field(default_factory=list)
    fits: list[SourceLine] = field(default_factory=list)

    def add(self, module: SourceModule, found: Instrumentation) -> None:
        """Instrument a module if it has a phase to label."""
        loops = [line for line in (found.epoch, found.batch) if line is not None and Path(line.file) == module.path]
        calls = [line for line in found.sinks if found.wrapper == KERAS_FIT and Path(line.file) == module.path]
        loops += calls
        if module.error or not (loops or module.is_entry or any(word in module.text for word in _WORDS)):
            return
        tree, file = instrumented(module.source, module.path, found), str(module.path)
        evaluations, saves = label_evaluations(tree), label_saves(tree)
        if calls:
            label_fits(tree)
            self.fits += [SourceLine(file, line) for line in sorted({call.line for call in calls})]
        if loops or evaluations or saves or module.is_entry:
            self.trees[module.path], self.sources[module.path] = tree, module.source
            self.evaluations += [SourceLine(file, line) for line in evaluations]
            self.saves += [SourceLine(file, line) for line in saves]

    def replacements(self, paths: Iterator[Path], optimize: int) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return, by file name, pairs of a module's marshalled code: original and instrumented. `optimize`: as of `compile`."""
        found: dict[str, list[tuple[bytes, bytes]]] = {}
        for path in paths:
            own, labelled = (
                marshal.dumps(compile(each, str(path), "exec", dont_inherit=True, optimize=optimize))
                for each in (self.sources[path], self.trees[path])
            )
            found.setdefault(path.name, []).append((own, labelled))
        return found


def labelled_command(words: Sequence[str], descriptor: int) -> LabelledCommand:
    """Return the command with the loops of its script labelled. The script's files are only read.

    `descriptor`: number of the descriptor at which the job will have the program. Raises IotwinError with the reason if:

    * the command runs no script, or by another version of Python
    * the script logs phases itself
    * it is uncertain which lines are the script's loops
    """
    command = python_command(words)
    python = interpreter_of(command)
    if (python.magic, python.tag) != (importlib.util.MAGIC_NUMBER, sys.implementation.cache_tag):
        raise IotwinError(f"{command.program} is {python.tag}, but iotwin runs on {sys.implementation.cache_tag}")
    if command.script is not None:
        script, argv = Path(command.script), command.script
        folder, file = str(script.resolve().parent), os.path.join(os.getcwd(), argv)  # noqa: PTH109, PTH118 - as Python does
    else:
        script, argv, folder, file = module_file(command.module or "", python), "-m", str(Path.cwd()), None
    found = _sure_loops(script)
    modules = _LabelledModules()
    entry = _add_all(modules, script, found)
    others = (path for path in modules.trees if file is None or path != entry)
    settings = {
        "session": _SESSION,
        "session_settings": (SESSION, descriptor, *_facts(modules.trees, found)),
        "argv": argv,
        "command": list(words),
        "folder": None if python.safe_path else folder,
        "file": file,
        "modules": modules.replacements(others, python.optimize),
    }
    tree = ast.parse(f"__import__('runpy')._run_module_as_main({command.module!r})") if file is None else modules.trees[entry]
    _begin_with(tree, settings)
    code = compile(tree, file or f"<{command.module}>", "exec", dont_inherit=True, optimize=python.optimize)
    program = importlib.util.MAGIC_NUMBER + _HEADER + marshal.dumps(code)
    run = [command.program, *command.options, f"/proc/self/fd/{descriptor}", *command.arguments]
    return LabelledCommand(run, program, _note(found, modules))


def _sure_loops(script: Path) -> Instrumentation:
    found = discover(script)
    if found.wrapper == KERAS_FIT:  # several calls of fit are no reason against labels
        return found
    if found.kind == "FRAMEWORK":
        raise IotwinError(found.reasons[0])
    if found.confidence < SURE or found.batch is None:
        raise IotwinError(f"it is unsure which lines of {script} are its loops: {found.reasons[-1]}")
    return found


def _add_all(modules: _LabelledModules, script: Path, found: Instrumentation) -> Path:
    """Instrument the script and its local modules, and return the script's path. Raises IotwinError if they log phases."""
    local = LocalModules(script, checkout=False)
    loops = {Path(line.file) for line in (found.epoch, found.batch, found.update) if line is not None}
    if not loops <= {module.path for module in local.all()}:
        local = LocalModules(script)
    for module in local.all():
        if _LOGS_ITSELF in module.text.lower():
            raise IotwinError(f"{module.path} logs phases itself: it mentions MLLOG")
    for module in local.all():
        modules.add(module, found)
    return local.entry.path


def _facts(trees: dict[Path, ast.Module], found: Instrumentation) -> tuple[bool, bool, bool]:
    """Return the arguments `has_epochs`, `is_for` and `fetches` of PhaseSession.

    In this order: the script has a loop over epochs; its batch loop is a `for`; the body of that loop fetches the batches.
    Such a body reports each batch to the session by a call of `data`. For Keras's `fit`: (True, True, False).
    """
    if found.batch is None:  # Keras's fit
        return True, True, False
    tree = next(tree for path, tree in trees.items() if found.batch is not None and path == Path(found.batch.file))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
    loop = next(node for node in loops if found.batch is not None and node.lineno == found.batch.line)
    calls = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    return found.epoch is not None, not isinstance(loop, ast.While), any(ast.unparse(each) == f"{SESSION}.data" for each in calls)


def _begin_with(tree: ast.Module, settings: dict[str, Any]) -> None:
    """Insert the code of start.py into a module, after its docstring and `from __future__` imports."""
    text = f"(lambda names: (exec(__import__('marshal').loads({_START!r}), names), names['start']({settings!r})))({{}})"
    at = 0
    for at, statement in enumerate(tree.body):  # noqa: B007 - used after the loop
        text_alone = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not text_alone and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
    [first] = ast.parse(text).body
    for node in ast.walk(first):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = tree.body[at].lineno
            node.col_offset = node.end_col_offset = 0
    tree.body.insert(at, first)


def _note(found: Instrumentation, modules: _LabelledModules) -> str:
    parts: dict[str, Sequence[SourceLine | None]] = {
        "epochs and steps": modules.fits, "epochs": [found.epoch], "steps": [found.batch],
        "evaluations": modules.evaluations, "checkpoints": modules.saves,
    }  # fmt: skip
    named = [f"{name} by {_shown(lines)}" for name, lines in parts.items() if any(lines)]
    return f"phases are labelled by the loops of the script: {', '.join(named)}"


def _shown(lines: Sequence[SourceLine | None]) -> str:
    return " and ".join(f"{line.file}:{line.line}" for line in lines if line is not None)
