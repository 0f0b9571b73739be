"""Reads and writes logs of a model's operations: one JSON object per line.

The loggers of DTR's authors write this format; docs/dtr.md describes its nine instructions. Numbers are decimal strings. Every
tensor has a unique name. The MEMORY and ALIAS lines of a tensor follow the CONSTANT or CALL that defines it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import MOST_JSON_BYTES, decode_foreign, read_foreign_lines
from iotwin.workloads.dtr.simulator.graph import Graph, GraphBuilder

INSTRUCTIONS = ("ANNOTATE", "CONSTANT", "MEMORY", "CALL", "ALIAS", "MUTATE", "COPY", "COPY_FROM", "RELEASE")
_MOST_PROBLEMS = 20


class LogError(IotwinError):
    """A line of a log violates the format."""


class Line(msgspec.Struct):
    """One line of a log. INSTRUCTION determines which other fields it has."""

    INSTRUCTION: str
    NAME: str = ""
    ANNOTATION: str = ""
    MEMORY: str | int = -1
    ARGS: list[str] = []
    RESULT: list[str] = []
    TIME: str | int = 0
    ALIAS: str | int = -2
    MUTATE: list[int] = []
    DST: str = ""
    SRC: str = ""


@dataclass
class Problem(Exception):
    """Raised for a line that violates the format; holds the line's number."""

    line: int
    text: str


@dataclass
class OperationLog:
    """A log in memory: graph, number of lines, count of each instruction, number of the line BACKWARD, and the problems found."""

    graph: Graph
    lines: int
    instructions: dict[str, int]
    backward_line: int | None
    problems: list[Problem]


def read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Yield (line number, instruction) for each line of the log. Raises Problem if a line is not an instruction."""
    for number, text in enumerate(read_foreign_lines(path, MOST_JSON_BYTES), 1):
        if not text.strip():
            continue
        try:
            yield number, decode_foreign(text, Line, "it")
        except IotwinError as error:
            cut = " (the line is cut off)" if not text.endswith(b"\n") else ""
            raise Problem(number, f"not an instruction: {error}{cut}") from None


def _number(text: str | int, line: int, what: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise Problem(line, f"{what} '{text}' is not a whole number") from None
    if value < 0:
        raise Problem(line, f"{what} {value} is negative")
    if value >= 1 << 60:
        raise Problem(line, f"{what} {value} is too large")
    return value


@dataclass
class _Pending:
    """A CONSTANT or CALL with MEMORY and ALIAS lines that have not been read yet."""

    line: int
    instruction: Line
    wanted: list[tuple[str, str]]  # (instruction, tensor's name) of the lines still missing; the line expected next is last
    sizes: list[int] = field(default_factory=list)
    aliases: list[int] = field(default_factory=list)


class _Reader:
    """Builds a graph from instructions. Names of released tensors are kept, since `finish` pins outputs in the order of names."""

    def __init__(self) -> None:
        self.graph = GraphBuilder()
        self.names: dict[str, int] = {}
        self.tensor_references: list[int] = []
        self.storage_references: dict[int, int] = {}
        self.backward = False
        self.pending: _Pending | None = None

    def take(self, line: int, instruction: Line) -> None:
        if self.pending is not None or instruction.INSTRUCTION in ("MEMORY", "ALIAS"):
            try:
                self._detail(line, instruction)
            except Problem:
                self.pending = None  # so that the next lines are read as if the faulty operation were complete
                raise
            return
        handler = getattr(self, f"_{instruction.INSTRUCTION.lower()}", None)
        if instruction.INSTRUCTION not in INSTRUCTIONS or handler is None:
            raise Problem(line, f"unknown instruction '{instruction.INSTRUCTION}'")
        handler(line, instruction)

    def finish(self, line: int, preallocate: bool) -> Graph:
        """Pin the tensors that are still alive or, if `preallocate`, sum their bytes instead. Return the graph."""
        if self.pending is not None:
            raise Problem(line, f"the log ends before {' of '.join(self.pending.wanted[-1])}, line {self.pending.line} needs it")
        counted = set()
        for tensor in self.names.values():
            if self.tensor_references[tensor] <= 0:
                continue
            if not preallocate:
                self.graph.pin(tensor)
            elif (storage := self.graph.storage(tensor)) not in counted:
                counted.add(storage)
                self.graph.output_bytes += self.graph.storage_size(tensor)
        return self.graph.build()

    def _known(self, name: str, line: int) -> int:
        if name not in self.names:
            raise Problem(line, f"'{name}' is used before it is defined")
        return self.names[name]

    def _new(self, name: str, line: int) -> None:
        if not name:
            raise Problem(line, "a name is missing")
        if name in self.names:
            raise Problem(line, f"'{name}' is defined a second time")

    def _refer(self, tensor: int) -> None:
        while len(self.tensor_references) <= tensor:
            self.tensor_references.append(0)
        self.tensor_references[tensor] += 1
        storage = self.graph.storage(tensor)
        self.storage_references[storage] = self.storage_references.get(storage, 0) + 1

    def _drop(self, tensor: int, line: int, name: str) -> None:
        storage = self.graph.storage(tensor)
        if self.storage_references.get(storage, 0) <= 0:
            raise Problem(line, f"'{name}' is released more often than it is named")
        self.storage_references[storage] -= 1
        self.tensor_references[tensor] -= 1
        self.graph.release(tensor)

    def _live(self, name: str, line: int) -> int:
        tensor = self._known(name, line)
        if self.storage_references.get(self.graph.storage(tensor), 0) <= 0:
            raise Problem(line, f"'{name}' is used after its release")
        return tensor

    def _annotate(self, line: int, instruction: Line) -> None:
        if instruction.ANNOTATION == "BACKWARD":
            self.backward = True

    def _constant(self, line: int, instruction: Line) -> None:
        self._new(instruction.NAME, line)
        self.pending = _Pending(line, instruction, [("MEMORY", instruction.NAME)])

    def _call(self, line: int, instruction: Line) -> None:
        _number(instruction.TIME, line, "time")
        if len(set(instruction.RESULT)) < len(instruction.RESULT):
            raise Problem(line, "two results have one name")
        if not instruction.RESULT:
            raise Problem(line, "a call without results")
        for name in instruction.ARGS:
            self._live(name, line)
        for name in instruction.RESULT:
            self._new(name, line)
        wanted = [(what, name) for name in reversed(instruction.RESULT) for what in ("ALIAS", "MEMORY")]
        self.pending = _Pending(line, instruction, wanted)

    def _detail(self, line: int, instruction: Line) -> None:
        """Read a MEMORY or ALIAS line, which belongs to the latest CONSTANT or CALL."""
        if self.pending is None:
            raise Problem(line, f"{instruction.INSTRUCTION} of '{instruction.NAME}' belongs to no CONSTANT or CALL")
        pending, wanted = self.pending, self.pending.wanted.pop()
        if wanted != (instruction.INSTRUCTION, instruction.NAME):
            found = f"{instruction.INSTRUCTION} of {instruction.NAME or 'nothing'}"
            raise Problem(line, f"{wanted[0]} of {wanted[1]} should follow line {pending.line}, not {found}")
        if wanted[0] == "MEMORY":
            pending.sizes.append(_number(instruction.MEMORY, line, "memory"))
        else:
            pending.aliases.append(self._alias(instruction, line, pending))
        if not pending.wanted:
            self.pending = None
            self._made(pending)

    def _alias(self, instruction: Line, line: int, pending: _Pending) -> int:
        alias = -1 if str(instruction.ALIAS) == "-1" else _number(instruction.ALIAS, line, "alias")
        if alias >= (count := len(pending.instruction.ARGS)):
            raise Problem(line, f"alias {alias} of '{instruction.NAME}' is no argument of line {pending.line}, which has {count}")
        return alias

    def _made(self, pending: _Pending) -> None:
        made = pending.instruction
        if made.INSTRUCTION == "CONSTANT":
            results = [(made.NAME, pending.sizes[0], -1)]
            tensors = self.graph.add("constant", 0, [], results, self.backward, constant=True)
            self.graph.pin(tensors[0])
        else:
            self.backward |= "backward" in made.NAME
            args = [self.names[name] for name in made.ARGS]
            results = list(zip(made.RESULT, pending.sizes, pending.aliases, strict=True))
            tensors = self.graph.add(made.NAME, int(made.TIME), args, results, self.backward)
        for (name, _, _), tensor in zip(results, tensors, strict=True):
            self.names[name] = tensor
            self._refer(tensor)

    def _mutate(self, line: int, instruction: Line) -> None:
        """Replace each tensor modified in place by a new tensor of that name, as large as its whole storage (copy on write)."""
        cost = _number(instruction.TIME, line, "time")
        args = [self._live(name, line) for name in instruction.ARGS]
        for index in instruction.MUTATE:
            if not 0 <= index < len(args):
                raise Problem(line, f"mutated argument {index} is none of {len(args)}")
        if not instruction.MUTATE:
            raise Problem(line, "a mutation of nothing")
        self.backward |= "backward" in instruction.NAME
        names = [instruction.ARGS[index] for index in instruction.MUTATE]
        results = [(f"{name}$", self.graph.storage_size(self.names[name]), -1) for name in names]
        for name, tensor in zip(names, self.graph.add(instruction.NAME, cost, args, results, self.backward), strict=True):
            old, self.names[name] = self.names[name], tensor
            self._refer(tensor)
            self._drop(old, line, name)

    def _copy(self, line: int, instruction: Line) -> None:
        self._new(instruction.DST, line)
        source = self._live(instruction.SRC, line)
        self.names[instruction.DST] = source
        self._refer(source)
        self.graph.get(source)

    def _copy_from(self, line: int, instruction: Line) -> None:
        """Bind a name to another tensor. If both share a storage, add the new reference first, to keep the storage alive."""
        old, new = self._known(instruction.DST, line), self._live(instruction.SRC, line)
        self._refer(new)
        if self.graph.storage(old) == self.graph.storage(new):
            self.graph.get(new)
            self._drop(old, line, instruction.DST)
        else:
            self._drop(old, line, instruction.DST)
            self.graph.get(new)
        self.names[instruction.DST] = new

    def _release(self, line: int, instruction: Line) -> None:
        if instruction.NAME in self.names:  # otherwise it is a tensor from before the START annotation
            self._drop(self.names[instruction.NAME], line, instruction.NAME)


def read_log(path: Path, preallocate: bool = False, collect: bool = False) -> OperationLog:
    """Return the log at `path` with its graph. If the log has a START annotation, instructions before the first one are ignored.

    With `preallocate`, tensors alive at the end are not pinned; instead their bytes are summed in `output_bytes`. Raises LogError
    with file and line if the log has a problem. With `collect`, raises nothing, and the result lists up to 20 problems.
    """
    reader, counts = _Reader(), dict.fromkeys(INSTRUCTIONS, 0)
    problems: list[Problem] = []
    number, backward_line, started = 0, None, False
    try:
        for number, instruction in read_lines(path):
            if not started and instruction.INSTRUCTION == "ANNOTATE" and instruction.ANNOTATION == "START":
                started, reader, backward_line, problems = True, _Reader(), None, []
                counts = dict.fromkeys(INSTRUCTIONS, 0)
            counts[instruction.INSTRUCTION] = counts.get(instruction.INSTRUCTION, 0) + 1
            if len(problems) < (_MOST_PROBLEMS if collect else 1):
                try:
                    reader.take(number, instruction)
                except Problem as problem:
                    problems.append(problem)
            if backward_line is None and instruction.ANNOTATION == "BACKWARD":
                backward_line = number
    except Problem as problem:
        problems.append(problem)
    graph = reader.graph.build()
    try:
        graph = graph if problems else reader.finish(number, preallocate)
    except Problem as problem:
        problems.append(problem)
    if not problems and not graph.operators:
        problems.append(Problem(max(number, 1), "the log holds no operation"))
    if problems and not collect:
        raise LogError(f"{path}:{problems[0].line}: {problems[0].text}")
    return OperationLog(graph, number, {k: v for k, v in counts.items() if v}, backward_line, problems)


def write_line(instruction: str, **fields: Any) -> bytes:
    """Return one instruction as a line of a log."""
    texts = {k: str(v) if k in ("MEMORY", "TIME", "ALIAS") else v for k, v in fields.items()}
    return msgspec.json.encode({"INSTRUCTION": instruction, **texts}) + b"\n"
