"""Reads and writes graph.txt, the format of profiles: one line per node, then one line per edge.

    node41 -- Linear(...) -- forward_compute_time=0.393, backward_compute_time=0.548, activation_size=512000.0, parameter_size=16388000.000
    <tab>node40 -- node41

Times are milliseconds per minibatch, sizes bytes. An activation size may be a list, ``[1.0; 2.0]``, whose sum counts.
The nodes of an optimised graph end in `` -- stage_id=K``.

A second file, graph.measured.json, holds what PipeDream's format lacks: the milliseconds of each layer's update, and the cost of
an exchange between two ranks.
"""  # noqa: E501

import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import write_json, write_whole
from iotwin.common.untrusted_files import read_foreign_struct, read_foreign_text
from iotwin.workloads.pipedream.plan.layer_graph import Cycle, ExchangeCost, LayerGraph, LayerNode

_SEPARATOR = " -- "
_KEYS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_STAGE = re.compile(r"stage_id=(\d{1,9})")
_MEASURED = ".measured.json"


class _Measured(msgspec.Struct, forbid_unknown_fields=True):
    graph_sha256: str  # of the graph.txt that it belongs to
    update_ms: dict[str, float] = {}
    exchange: ExchangeCost | None = None


def read_graph(path: Path) -> LayerGraph:
    """Return the graph in the file `path`, with the times in its second file, if there is one.

    Raises UsageError, with file and line, if a line is neither a node nor an edge, or if the second file is of another graph.
    """
    text, second = _text(path), path.with_suffix(_MEASURED)
    graph = parse_graph(text, str(path))
    return _with_measured(graph, _sha256(text), second) if second.is_file() else graph


def _with_measured(graph: LayerGraph, graph_sha256: str, path: Path) -> LayerGraph:
    try:
        found = read_foreign_struct(path, _Measured)
    except (OSError, IotwinError) as error:
        raise UsageError(f"{path} cannot be read: {error}; profile the model again, or remove the file") from None
    cost = found.exchange
    numbers = [*found.update_ms.values(), *((cost.latency_s, cost.bytes_per_s) if cost else ())]
    if found.graph_sha256 != graph_sha256 or not found.update_ms.keys() <= graph.index.keys():
        raise UsageError(f"{path} does not belong to the graph.txt next to it; profile the model again, or remove it")
    if not all(0 <= each < math.inf for each in numbers):
        raise UsageError(f"{path} has times that are negative or not finite; profile the model again, or remove it")
    if cost and not cost.bytes_per_s:
        raise UsageError(f"{path}: bytes_per_s must be above 0; profile the model again, or remove the file")
    nodes = tuple(replace(node, update_ms=found.update_ms.get(node.id, 0.0)) for node in graph.nodes)
    return replace(graph, nodes=nodes, exchange=cost)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the file, in hexadecimal."""
    return _sha256(_text(path))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text(path: Path) -> str:
    try:
        return read_foreign_text(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except IotwinError as error:
        raise UsageError(f"{error}; give a profile's graph.txt") from None


def parse_graph(text: str, name: str = "the graph") -> LayerGraph:
    """Return the graph in a file's `text`. Errors call the file `name`."""
    nodes: list[LayerNode] = []
    lines: list[int] = []
    index: dict[str, int] = {}
    edges = []
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        where = f"{name}:{number}"
        if line.startswith("\t"):
            edges.append(_edge(line[1:].rstrip(), index, where))
        elif line.strip():
            node = _node(line.rstrip(), where)
            if node.id in index:
                raise UsageError(f"{where}: node {node.id} was given before; ids must be unique")
            index[node.id] = len(nodes)
            nodes.append(node)
            lines.append(number)
    if not nodes:
        raise UsageError(f"{name} holds no nodes; give a profile's graph.txt")
    graph = LayerGraph(tuple(nodes), tuple(edges), name, "\n" if text.endswith("\n") else "")
    try:
        _ = graph.topological
    except Cycle as error:
        caught = nodes[error.node].id
        raise UsageError(
            f"{name}:{lines[error.node]}: node {caught} is in or behind a cycle; remove the edge that leads back"
        ) from None
    return graph


def _edge(line: str, index: dict[str, int], where: str) -> tuple[int, int]:
    ends = line.split(_SEPARATOR)
    if len(ends) != 2:
        raise UsageError(f"{where}: an edge is <tab>SOURCE -- TARGET, not '{line[:60]}'")
    for end in ends:
        if end not in index:
            raise UsageError(f"{where}: the edge names '{end[:40]}', which no node line above it does")
    return index[ends[0]], index[ends[1]]


def _node(line: str, where: str) -> LayerNode:
    parts = line.split(_SEPARATOR)
    stage = None
    if len(parts) > 3 and (match := _STAGE.fullmatch(parts[-1])):
        stage = int(match[1])
        parts.pop()
    if len(parts) != 3:
        raise UsageError(
            f"{where}: a node is ID -- DESCRIPTION -- TIMES AND SIZES, three parts, not {len(parts)}; "
            "a description must not hold ' -- '"
        )
    forward, backward, activation, parameters = (
        _number(field, key, where) for field, key in zip(_fields(parts[2], where), _KEYS, strict=True)
    )
    return LayerNode(parts[0], parts[1], forward, backward, activation, parameters, stage, parts[2])


def _fields(text: str, where: str) -> list[str]:
    fields = text.split(", ")
    if len(fields) != len(_KEYS):
        raise UsageError(f"{where}: times and sizes are {', '.join(key + '=' for key in _KEYS)}, not '{text[:60]}'")
    return fields


def _number(field: str, key: str, where: str) -> float:
    name, _, text = field.partition("=")
    if name != key:
        raise UsageError(f"{where}: found '{field[:40]}' instead of {key}=")
    parts = text[1:-1].split("; ") if text.startswith("[") and text.endswith("]") else [text]
    try:
        values = [float(part) for part in parts]
    except ValueError:
        raise UsageError(f"{where}: {key} is '{text[:40]}', which is no number") from None
    if any(not math.isfinite(value) or value < 0 for value in values):
        raise UsageError(f"{where}: {key} is {text[:40]}; times and sizes are finite and not negative")
    return sum(values)


def _line(node: LayerNode) -> str:
    if _SEPARATOR in node.id or _SEPARATOR in node.description:
        raise UsageError(f"node {node.id[:40]}: an id or description must not hold ' -- '")
    values = node.written or (
        f"forward_compute_time={node.forward_ms:.3f}, backward_compute_time={node.backward_ms:.3f}, "
        f"activation_size={node.activation_bytes}, parameter_size={node.parameter_bytes:.3f}"
    )
    text = _SEPARATOR.join((node.id, node.description.replace("\n", ""), values))
    return text if node.stage is None else f"{text}{_SEPARATOR}stage_id={node.stage}"


def format_graph(graph: LayerGraph) -> str:
    """Return the text of the graph's file: nodes, then edges."""
    edges = (f"\t{graph.nodes[a].id}{_SEPARATOR}{graph.nodes[b].id}" for a, b in graph.edges)
    return "\n".join([*map(_line, graph.nodes), *edges]) + graph.ending


def write_graph(graph: LayerGraph, path: Path) -> None:
    """Write the graph's file atomically, and its second file if there is anything for it. Raises IotwinError on failure."""
    text = format_graph(graph)
    write_whole(path, text.encode())
    updates, second = {node.id: node.update_ms for node in graph.nodes if node.update_ms}, path.with_suffix(_MEASURED)
    if updates or graph.exchange or second.is_file():  # else the second file of another graph would remain
        write_json(second, msgspec.to_builtins(_Measured(_sha256(text), updates, graph.exchange)))
