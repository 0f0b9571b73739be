"""Parse YAML 1.2 from strangers with bounds, so that a few hundred bytes cannot expand to billions of values.

An alias may stand for a list of aliases, so the number of values may multiply at each level of nesting. Therefore the parser
counts the values of the whole document before it builds any. If PyYAML was built with libyaml, parsing is ten times as fast.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_text

LARGEST_BYTES = 64 << 20  # twice the bytes of a twin that names a million files
_DEEPEST = 64
_ALWAYS_ALLOWED = 100_000  # largest number of values that aliases may expand a document to

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# YAML 1.2's scalars as (tag, pattern, first characters), and YAML 1.1's `1_000`.
SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
)


class _Yaml12(_SafeLoader):  # type: ignore[misc]
    """Loads YAML 1.2's scalars: ``off`` and ``no`` are words and ``1e-3`` is a number. PyYAML alone follows YAML 1.1.

    YAML 1.1's merge keys (``<<``) and numbers such as ``1_000`` are valid, too. A duplicate key is an error, as in OmegaConf.
    """


_Yaml12.yaml_implicit_resolvers = {}


def add_scalars(yaml_class: Any) -> None:
    """Make the loader or dumper `yaml_class` also recognise YAML 1.2's scalars."""
    for tag, pattern, first in SCALARS:
        yaml_class.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)


add_scalars(_Yaml12)
_Yaml12.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])


def read_text(path: Path) -> str:
    """Return the text of the YAML file at `path`. Raises UsageError if the file cannot be read."""
    try:
        return read_foreign_text(path, LARGEST_BYTES)
    except IotwinError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def parse(text: str, where: str) -> Any:
    """Return the plain values in the YAML 1.2 `text`. Raises UsageError, which names `where` and the line, if

    * `text` is not YAML,
    * a mapping has a key twice, or an alias refers to itself,
    * aliases expand the document to more than 100 000 values.
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
    """Raise yaml.YAMLError if `text` is nested too deeply. libyaml's time grows with the square of the depth."""
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
    """Return the number of values that `node` has if every alias is replaced by its target.

    `counts` caches results by id(node). While a node is being counted, its entry is 0; this detects cycles.
    """
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
