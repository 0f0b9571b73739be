"""What an expression of a script may evaluate to: local functions, classes, instances, or names of installed packages."""

import ast
from dataclasses import dataclass, field

from iotwin.workloads.detrain.source_analysis.local_modules import SourceModule
from iotwin.workloads.detrain.source_analysis.scopes import CodeScope, Loop

Argument = tuple[ast.expr, "CallFrame"]


@dataclass(eq=False)
class CallFrame:
    """One way to reach a function: the call that leads there, and the values of the parameters in this call.

    `caller` and `call`: where the call is; None for the script itself, and if the caller is unknown. `closure`: the frame of the
    function around this one.
    """

    scope: CodeScope
    arguments: dict[str, list[Argument]] = field(default_factory=dict)
    instance: "LocalInstance | None" = None
    caller: "CallFrame | None" = None
    call: ast.expr | None = None
    closure: "CallFrame | None" = None
    depth: int = 0

    def reached_from(self, frame: "CallFrame") -> ast.expr | None:
        """Return the call in `frame` that leads, directly or not, to this frame; None if none does."""
        below = self
        while below.caller is not None:
            if below.caller is frame:
                return below.call
            below = below.caller
        return None


@dataclass(frozen=True)
class ActiveLoop:
    """A loop in a certain frame."""

    node: Loop
    frame: CallFrame

    @property
    def line(self) -> int:
        """Line of the `for` or `while`."""
        return self.node.lineno

    @property
    def module(self) -> SourceModule:
        """The module that contains the loop."""
        return self.frame.scope.module

    def contains(self, node: ast.AST, frame: "CallFrame | None") -> bool:
        """Return whether the code at `node` in `frame` runs within an iteration, the target of a `for` included."""
        while frame is not None:
            if frame is self.frame:
                return self._has(node)
            if frame.call is None:
                return False
            node, frame = frame.call, frame.caller
        return False

    def _has(self, node: ast.AST) -> bool:
        loop, below = self.node, node
        if node is loop:
            return True
        for above in self.module.ancestors(node):
            if above is loop:
                return below not in loop.orelse and (isinstance(loop, ast.While) or below is not loop.iter)
            below = above
        return False


@dataclass(frozen=True, eq=False)
class LocalFunction:
    """A function of a local module. `arguments`, `keywords`: bound by functools.partial."""

    scope: CodeScope
    closure: CallFrame | None = None
    instance: "LocalInstance | None" = None
    arguments: tuple[Argument, ...] = ()
    keywords: tuple[tuple[str, Argument], ...] = ()


@dataclass(frozen=True, eq=False)
class LocalClass:
    """A class of a local module."""

    node: ast.ClassDef
    frame: CallFrame

    @property
    def module(self) -> SourceModule:
        """The module that contains the class."""
        return self.frame.scope.module


@dataclass(frozen=True, eq=False)
class LocalInstance:
    """An object of a local class. `call`, `frame`: the call that creates it, None if unknown.

    `after`: search attributes only in the classes after this one in the inheritance order, as `super()` does.
    """

    local_class: LocalClass
    call: ast.Call | None = None
    frame: CallFrame | None = None
    after: LocalClass | None = None


@dataclass(frozen=True, eq=False)
class LocalModule:
    """A local module as a value."""

    module: SourceModule


@dataclass(frozen=True, eq=False)
class Outside:
    """A value of an installed package or a builtin. `path`: the expression for it, as `torch.optim.SGD()`; `[]` means an item.

    `call`, `frame`: the call that returned it.
    """

    path: str
    call: ast.Call | None = None
    frame: CallFrame | None = None


@dataclass(frozen=True, eq=False)
class Items:
    """A list, tuple, set or dict written out. `keys` has the constant keys of a dict."""

    elements: tuple[Argument, ...]
    keys: tuple[object, ...] = ()


@dataclass(frozen=True, eq=False)
class Generator:
    """What a call of a local generator function returns."""

    function: LocalFunction
    frame: CallFrame
    call: ast.Call


Value = LocalFunction | LocalClass | LocalInstance | LocalModule | Outside | Items | Generator
