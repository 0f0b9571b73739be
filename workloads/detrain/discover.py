"""Finds the loops of a training script in its source: epochs, batches, where a batch comes from and what updates the weights."""

import ast
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.instrumentation import (
    KERAS_FIT,
    SURE,
    BatchSource,
    CallLine,
    Instrumentation,
    Kind,
    SourceLine,
    Wrapper,
    shown_source,
    source_sha256,
)
from iotwin.workloads.detrain.source_analysis.batch_sources import PACKAGES_WITHOUT_LOOPS, Source, Strength
from iotwin.workloads.detrain.source_analysis.call_graph import CallGraph, Sink
from iotwin.workloads.detrain.source_analysis.data_names import names_loader
from iotwin.workloads.detrain.source_analysis.inference import Inference
from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules
from iotwin.workloads.detrain.source_analysis.loop_choice import BatchLoop, LoopChoice
from iotwin.workloads.detrain.source_analysis.models import Models
from iotwin.workloads.detrain.source_analysis.scopes import FOR_LOOPS
from iotwin.workloads.detrain.source_analysis.sinks import SinkKind
from iotwin.workloads.detrain.source_analysis.values import ActiveLoop, CallFrame, Generator, Outside

_RECURSION = 5000
_USUAL = 0.95
_AMBIGUOUS = 0.4
_KERAS = {"keras", "tensorflow"}


def no_loop(found: Instrumentation) -> str:
    """Return the error message for a script without a training loop."""
    return f"{found.script}: no training loop was found: {'; '.join(found.reasons[:2])}"


def discover(script: Path) -> Instrumentation:
    """Return the loops of a script. The script is only read. Raises IotwinError if it has no loop that trains."""
    found = analyse(script)
    if found.kind == "NONE":
        raise IotwinError(no_loop(found))
    return found


def analyse(script: Path) -> Instrumentation:
    """Return the loops of a script; `kind` is NONE if none was found. Raises IotwinError if the file is no valid Python."""
    begin = time.perf_counter()
    with _suited_interpreter(script):
        found = _analysed(script)
    files = {Path(found.script), *(Path(line.file) for line in _lines(found))}
    sources = {str(path): source_sha256(path) for path in sorted(files)}
    digest = sources[found.script]
    return msgspec.structs.replace(found, source_sha256=digest, sources=sources, seconds=time.perf_counter() - begin)


def _analysed(script: Path) -> Instrumentation:
    """Return the loops of a script. Packages in the folders above are read only if the loops are uncertain without them."""
    near = LocalModules(script, checkout=False)
    found = _analysed_with(near)
    if near.skipped and (found.kind == "NONE" or found.confidence < SURE):
        return max(found, _analysed_with(LocalModules(script)), key=lambda each: each.confidence)
    return found


def _analysed_with(modules: LocalModules) -> Instrumentation:
    graph = CallGraph(Inference(modules))
    graph.follow()
    choice = LoopChoice(graph)
    batches = choice.batch_loops()
    frameworks = [each for each in graph.sinks if each.kind is SinkKind.FRAMEWORK]
    if batches:
        return _described(graph, choice, batches, frameworks)
    if frameworks:
        return _of_framework(graph, frameworks)
    return _without_loop(graph)


@contextmanager
def _suited_interpreter(script: Path) -> Iterator[None]:
    """Let the analysis follow calls within calls more deeply than Python's usual limit.

    Python does not collect garbage meanwhile: searching millions of nodes would take a seventh of the time and find little.
    """
    limit, collects = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(limit, _RECURSION))
    gc.disable()
    try:
        yield
    except RecursionError:
        raise IotwinError(f"{script}: its code is nested too deeply; mark its loops by hand") from None
    finally:
        sys.setrecursionlimit(limit)
        if collects:
            gc.enable()


def _lines(found: Instrumentation) -> list[SourceLine]:
    return [line for line in (found.epoch, found.batch, found.data, found.update, *found.sinks) if line is not None]


def _document(graph: CallGraph, kind: Kind) -> Instrumentation:
    return Instrumentation(script=str(graph.inference.modules.entry.path), source_sha256="", sources={}, kind=kind)


def _without_loop(graph: CallGraph) -> Instrumentation:
    updates = [each for each in graph.sinks if each.kind in (SinkKind.UPDATE, SinkKind.GRADIENT)]
    if updates:
        last = updates[-1]
        where, call = _where(last.frame, last.call), shown_source(last.call)
        reason = f"{where}: {call} updates the weights, but no loop of the script is around it"
    else:
        reason = "no call that updates weights is reached from the script's first line"
    reasons = [reason, *_packages_that_may_train(graph), *graph.dynamic, *graph.inference.modules.errors]
    return msgspec.structs.replace(_document(graph, "NONE"), sinks=_call_lines(updates), reasons=reasons)


def _of_framework(graph: CallGraph, frameworks: list[Sink]) -> Instrumentation:
    calls = _call_lines(frameworks)
    reasons = [f"{line.file}:{line.line}: {line.call} runs the loops of an installed package" for line in calls]
    if len(calls) > 1:
        reasons.append(f"{len(calls)} calls train, one after the other or one of them")
    if repeats := [each for each in frameworks if each.loops or each.repeated]:
        reasons.append(f"{_where(repeats[0].frame, repeats[0].call)}: the call is in a loop")
    confidence = 0.9 if len(calls) == 1 and not repeats else _AMBIGUOUS
    is_keras = (
        all(getattr(each.call.func, "attr", "") == "fit" for each in frameworks) and _KERAS & graph.inference.modules.packages
    )
    return msgspec.structs.replace(
        _document(graph, "FRAMEWORK"), update=calls[-1], sinks=calls, confidence=confidence, reasons=reasons,
        wrapper=KERAS_FIT if is_keras else None,
    )  # fmt: skip


def _described(graph: CallGraph, choice: LoopChoice, batches: list[BatchLoop], frameworks: list[Sink]) -> Instrumentation:
    chosen = max(batches, key=lambda each: (not each.guessed, each.source is not None, each.epochs[0] is not None))
    epoch = chosen.epochs[0]
    update = _update(chosen)
    source = chosen.source
    data = _data(chosen)
    confidence, reasons = _judged(graph, batches, chosen, update, frameworks)
    return msgspec.structs.replace(
        _document(graph, _kind(choice, chosen)),
        epoch=_loop_line(epoch) if epoch is not None else None,
        batch=_loop_line(chosen.loop),
        data=data,
        update=_call_lines([update])[0],
        sinks=_call_lines(chosen.sinks),
        wrapper=_wrapper(chosen, source, update),
        loader=_loader(choice, source, epoch or chosen.loop) if source is not None else None,
        confidence=confidence,
        reasons=reasons,
    )


def _loop_line(loop: ActiveLoop) -> SourceLine:
    return SourceLine(str(loop.module.path), loop.line)


def _statement_line(node: ast.AST, frame: CallFrame) -> int:
    return frame.scope.module.statement(node).lineno


def _where(frame: CallFrame, node: ast.AST) -> str:
    return f"{frame.scope.module.path}:{_statement_line(node, frame)}"


def _call_lines(sinks: list[Sink]) -> list[CallLine]:
    found = [CallLine(str(each.frame.scope.module.path), each.line, shown_source(each.call)) for each in sinks]
    return list(dict.fromkeys(found))


def _update(chosen: BatchLoop) -> Sink:
    """Return the last call in the loop that updates weights, preferably one that runs in every iteration.

    If no call updates weights, return the last one that computes gradients.
    """
    for kind in (SinkKind.UPDATE, SinkKind.GRADIENT, SinkKind.WEAK):
        found = [each for each in chosen.sinks if each.kind is kind and (each.within is None or each.within.kind is not kind)]
        if found:
            return ([each for each in found if not _is_conditional(each, chosen.loop)] or found)[-1]
    return chosen.deciding[-1]


def _is_conditional(sink: Sink, loop: ActiveLoop) -> bool:
    """Return whether an `if` decides in each iteration whether the sink is called."""
    node: ast.AST = sink.call
    frame: CallFrame | None = sink.frame
    while frame is not None and frame is not loop.frame:
        if any(isinstance(each, ast.If) for each in frame.scope.module.ancestors(node)):
            return True
        if frame.call is None:
            return False
        node, frame = frame.call, frame.caller
    for above in loop.module.ancestors(node):
        if above is loop.node:
            return False
        if isinstance(above, ast.If):
            return True
    return False


def _data(chosen: BatchLoop) -> CallLine | None:
    source = chosen.source
    if source is None:
        return None
    file = str(source.frame.scope.module.path)
    if isinstance(source.node, FOR_LOOPS):
        return CallLine(file, source.node.lineno, shown_source(source.node.iter))
    return CallLine(file, _statement_line(source.node, source.frame), shown_source(source.node))


def _kind(choice: LoopChoice, chosen: BatchLoop) -> Kind:
    source = chosen.source
    if source is None:
        return "INDEXED" if isinstance(chosen.loop.node, FOR_LOOPS) else "NEXT_CALL"
    if not isinstance(source.node, FOR_LOOPS):
        return "INDEXED" if source.indexed else "NEXT_CALL"
    iterable, frame = choice.loader_of(source)
    generated = any(isinstance(each, Generator) for each in choice.inference.values(iterable, frame))
    return "GENERATOR" if generated else "FOR_OVER_LOADER"


def _wrapper(chosen: BatchLoop, source: Source | None, update: Sink) -> Wrapper | None:
    """Return the function that gets a batch and updates the weights; None if it is in the module of the batch loop."""
    if source is None or source.frame is not update.frame:
        return None
    scope = update.frame.scope
    if scope.module is chosen.loop.module:
        return None
    return Wrapper(scope.module.name, scope.name)


def _loader(choice: LoopChoice, source: Source, around: ActiveLoop) -> BatchSource:
    expression, frame = choice.loader_of(source)
    return BatchSource(shown_source(expression), not choice.is_made_within(expression, frame, around))


def _judged(
    graph: CallGraph, batches: list[BatchLoop], chosen: BatchLoop, update: Sink, frameworks: list[Sink]
) -> tuple[float, list[str]]:
    """Return the confidence in the result, from 0 to 1, and the reasons for it in words."""
    confidence, reasons = _USUAL, [_source_reason(chosen)]
    for factor, holds, reason in (
        (0.75, chosen.source is None, "each iteration may train on the same data"),
        (0.85, _strength(chosen) is Strength.RANDOM, "random numbers are the only data that change"),
        (0.9, _strength(chosen) is Strength.PLAIN, "only the data flow shows that this call gets the batch"),
        (0.9, update.kind is SinkKind.GRADIENT, "no call of an optimizer is seen, only gradients"),
        (0.6, update.kind is SinkKind.WEAK, "gradients are computed, but no update of the weights is seen"),
        (0.8, bool(graph.dynamic), "; ".join(graph.dynamic)),
        (0.7, bool(graph.inference.modules.errors), "; ".join(graph.inference.modules.errors)),
        (0.6, graph.truncated or graph.inference.truncated, "the script has more ways through its functions than were followed"),
    ):
        if holds:
            confidence *= factor
            reasons.append(reason)
    for holds, reason in (
        (_is_comprehension(chosen, update), "a comprehension or map repeats the update: no loop that could be instrumented"),
        (chosen.guessed, "no loss was found from which the loop computes gradients"),
        (chosen.split, "the weights are updated once after the loop over the data"),
        (len(batches) > 1, f"several loops train: {', '.join(_place(each.loop) for each in batches)}"),
        (len(chosen.epochs) > 1, f"the batch loop is reached from several loops: {', '.join(map(_place, chosen.epochs))}"),
        (bool(frameworks), f"a framework trains too: {', '.join(_where(each.frame, each.call) for each in frameworks)}"),
        (graph.unreached, "no call of the function with the loop is seen"),
    ):
        if holds:
            confidence = min(confidence, _AMBIGUOUS)
            reasons.append(reason)
    return round(confidence, 3), reasons


def _is_comprehension(chosen: BatchLoop, update: Sink) -> bool:
    """Return whether a comprehension repeats whole training steps, not just the updates of several optimizers."""
    gradients = [each for each in chosen.sinks if each.kind in (SinkKind.GRADIENT, SinkKind.WEAK)]
    return update.repeated and all(each.repeated for each in gradients)


def _strength(chosen: BatchLoop) -> Strength | None:
    return chosen.source.strength if chosen.source is not None else None


def _place(loop: ActiveLoop | None) -> str:
    return "no loop" if loop is None else f"{loop.module.path.name}:{loop.line}"


def _source_reason(chosen: BatchLoop) -> str:
    data = _data(chosen)
    if data is None:
        return f"the loop at {_place(chosen.loop)} updates the weights"
    return f"the loop at {_place(chosen.loop)} trains on what {data.call} gives at {Path(data.file).name}:{data.line}"


def _packages_that_may_train(graph: CallGraph) -> list[str]:
    """Return the calls of installed packages that get a model or a loader: they may contain the training loop."""
    found = []
    models = Models(graph.inference)
    for frame in graph.frames:
        for site in frame.scope.sites:
            paths = [each.path for each in graph.inference.called(site.call, frame) if isinstance(each, Outside)]
            if not paths or paths[0].partition(".")[0] in PACKAGES_WITHOUT_LOOPS:
                continue
            given = [*site.call.args, *(keyword.value for keyword in site.call.keywords)]
            if any(names_loader(ast.unparse(each)) or models.is_model(each, frame) for each in given):
                found.append(f"{_where(frame, site.call)}: {shown_source(site.call)} may train in an installed package")
    return found
