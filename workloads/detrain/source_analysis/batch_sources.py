"""Recognises what delivers a batch: loops, calls and subscripts, with the strength of the evidence for each."""

import ast
import re
import sys
from dataclasses import dataclass, field
from enum import IntEnum

from iotwin.workloads.detrain.source_analysis.data_names import (
    gets_data,
    is_method_of_values,
    is_parameter_list,
    looks_up_by_index,
    names_data,
)
from iotwin.workloads.detrain.source_analysis.inference import Inference
from iotwin.workloads.detrain.source_analysis.scopes import ForLoop
from iotwin.workloads.detrain.source_analysis.values import CallFrame, Outside

# Packages whose functions compute. A function of these delivers a batch only if it reads or draws something.
PACKAGES_WITHOUT_LOOPS = {"torch", "numpy", "tensorflow", "keras", "jax", "cupy", *sys.stdlib_module_names}
_RANDOM = re.compile(
    r"(?:^|\.)(?:rand\w*|normal|uniform|random|choice|choices|sample|permutation|integers|shuffle|bernoulli|poisson)$"
)


class Strength(IntEnum):
    """The strength of the evidence that a source delivers batches."""

    RANDOM = 1  # random numbers, as in a synthetic batch
    PLAIN = 2  # a call of which only the data flow is known
    CLEAR = 3


@dataclass(frozen=True, eq=False)
class Source:
    """What delivers the batches of a loop: the iterable of the loop, or a call or subscript in its body.

    `indexed`: an index selects the batch.
    """

    node: ForLoop | ast.expr
    frame: CallFrame
    strength: Strength
    indexed: bool = False


@dataclass
class BatchFlow:
    """The data that an expression depends on. `counted`: on a loop's counter; `computed`: on the result of a model or loss."""

    sources: list[Source] = field(default_factory=list)
    counted: bool = False
    computed: bool = False

    def add(self, other: "BatchFlow") -> "BatchFlow":
        """Return the union of this flow and that of another part of the expression."""
        known = {id(each.node) for each in self.sources}
        self.sources += [each for each in other.sources if id(each.node) not in known]
        self.counted |= other.counted
        self.computed |= other.computed
        return self

    @property
    def clear(self) -> bool:
        """True if a source is stronger than random numbers."""
        return any(each.strength > Strength.RANDOM for each in self.sources)


def called_source(
    node: ast.Call, frame: CallFrame, paths: list[str], is_local: bool, arguments: BatchFlow, inner: BatchFlow
) -> Source | None:
    """Return a call as a source, None if it delivers no batch.

    `paths`: functions of installed packages that it may call; `is_local`: it may call a local function. `arguments`: flow into
    its arguments; `inner`: flow into the return value of the local function.
    """
    text = ast.unparse(node.func)
    varies = arguments.counted or bool(arguments.sources)
    last = text.rpartition(".")[2]
    if looks_up_by_index(last) and varies:
        return Source(node, frame, Strength.CLEAR, True)
    if is_parameter_list(node.func) or (isinstance(node.func, ast.Attribute) and is_method_of_values(last)):
        return None
    if any(_is_random(path) for path in paths):
        return Source(node, frame, Strength.RANDOM)
    if paths and not is_local and any(path.partition(".")[0] in PACKAGES_WITHOUT_LOOPS for path in paths):
        reads = gets_data(last) or any(word in path for path in paths for word in (".utils.data.", ".data."))
        return Source(node, frame, Strength.CLEAR if varies else Strength.PLAIN, varies) if reads else None
    if any(path.startswith("builtins.") for path in paths):
        return None
    clear = gets_data(last) or names_data(text.rpartition(".")[0]) or inner.clear
    return Source(node, frame, Strength.CLEAR if clear else Strength.PLAIN, varies)


def is_counter(iterable: ast.expr, frame: CallFrame, inference: Inference) -> bool:
    """Return whether an iterable only counts, or yields indices."""
    if isinstance(iterable, ast.Constant | ast.JoinedStr):
        return True
    if isinstance(iterable, ast.List | ast.Tuple):
        return all(isinstance(each, ast.Constant) for each in iterable.elts)
    for value in inference.values(iterable, frame):
        if isinstance(value, Outside):
            name = value.path.removesuffix("()").rpartition(".")[2]
            if name in ("range", "count", "arange", "trange", "randperm", "permutation", "linspace") and "()" in value.path:
                return True
    return False


def _is_random(path: str) -> bool:
    return path.partition(".")[0] in PACKAGES_WITHOUT_LOOPS and bool(_RANDOM.search(path))
