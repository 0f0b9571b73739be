"""YAML 1.2 that somebody else wrote: read with bounds, so that a few hundred bytes cannot stand for billions of values.

An alias may stand for a list of aliases, and so on: each level multiplies. What the document comes to is counted before any of it
is made. libyaml reads where PyYAML was built with it, at ten times the speed.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from common.errors import UsageError

LARGEST_BYTES = 64 << 20  # a twin that names a million files has half of it
_DEEPEST = 64
_ALWAYS_ALLOWED = 100_000  # values of a document with aliases

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# YAML 1.2's scalars as (tag, pattern, first characters); `1_000` is kept of 1.1.
SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
)


class _Yaml12(_SafeLoader):  # type: ignore[misc]
    """YAML 1.2's scalars: ``off`` and ``no`` are words and ``1e-3`` is a number, where PyYAML follows YAML 1.1.

    Of 1.1 it keeps merge keys (``<<``) and ``1_000``; a key that is given twice is an error, as for OmegaConf.
    """


_Yaml12.yaml_implicit_resolvers = {}


def add_scalars(yaml_class: Any) -> None:
    """Let the loader or dumper `yaml_class` know YAML 1.2's scalars besides those that it knows."""
    for tag, pattern, first in SCALARS:
        yaml_class.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)


add_scalars(_Yaml12)
_Yaml12.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])


def read_text(path: Path, limit_bytes: int = LARGEST_BYTES) -> str:
    """Return the text of the file at `path`; UsageError when it is larger than `limit_bytes`, OSError and UnicodeDecodeError."""
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise UsageError(f"{path}: is larger than the {limit_bytes >> 20} MiB that a YAML of ours may have; is it one?")
    return content.decode("utf-8")


def parse(text: str, where: str) -> Any:
    """Return the plain values that the YAML 1.2 `text` holds; UsageError, naming `where` and the line, when it is none.

    A key that is given twice, an alias that refers to itself, and aliases that come to more values than the text has and 100 000
    are refused, too.
    """
    try:
        return _load(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line}: is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not YAML: {' '.join(str(error).split())}") from None


def _load(text: str) -> Any:
    _refuse_deep(text)
    loader = _Yaml12(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        counts: dict[int, int] = {}
        if _count(node, counts) > max(_ALWAYS_ALLOWED, len(counts)):
            raise yaml.YAMLError(f"its aliases stand for more than {_ALWAYS_ALLOWED} values; write fewer out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_deep(text: str) -> None:
    """Raise yaml.YAMLError for nesting that no workload has; libyaml takes a time that grows with its square."""
    parser, depth = _Yaml12(text), 0
    try:
        while parser.check_event():
            event = parser.get_event()
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _DEEPEST:
                raise yaml.MarkedYAMLError(problem=f"nested more than {_DEEPEST} deep", problem_mark=event.start_mark)
    finally:
        parser.dispose()


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return how many values `node` comes to, every alias written out; `counts` has those of nodes seen, 0 while under way."""
    if (known := counts.get(id(node))) is not None:
        if not known:
            raise yaml.YAMLError("an alias in it refers to itself; write the value out")
        return known
    counts[id(node)] = 0
    values = 1
    if isinstance(node, yaml.SequenceNode):
        values += sum(_count(item, counts) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        _refuse_twice(node)
        values += sum(_count(key, counts) + _count(value, counts) for key, value in node.value)
    counts[id(node)] = values
    return values


def _refuse_twice(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key '{key.value}' is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
