"""Workloads as YAML text: parsed as YAML 1.2, dumped so that any YAML reader reads the same."""

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmark.config.schema import Config
from tracing_tools.trace.errors import UsageError
from tracing_tools.trace.output import write_whole

_FREE_SECTION = "storage.storage_options"  # whatever keys an object store knows
# What somebody who reads a twin looks for, and whoever asks what would be if edits.
_ALWAYS_TOLD = frozenset({
    "model.name", "framework", "workflow.train", "workflow.evaluation", "workflow.checkpoint", "dataset.data_folder",
    "dataset.format", "reader.data_loader", "reader.batch_size", "reader.batch_size_eval", "reader.read_threads",
    "reader.file_shuffle", "reader.sample_shuffle", "reader.preprocess_time", "train.epochs", "train.computation_time",
    "train.seed", "train.seed_change_epoch", "checkpoint.checkpoint_folder", "output.folder", "metric.au",
})  # fmt: skip


class _Yaml12(yaml.SafeLoader):
    """YAML 1.2's scalars: ``off`` and ``no`` are words and ``1e-3`` is a number, where PyYAML follows YAML 1.1.

    Of 1.1 it keeps merge keys (``<<``) and ``1_000``; a key that is given twice is an error, as for OmegaConf.
    """

    def compose_mapping_node(self, anchor: Any) -> Any:
        node: Any = super().compose_mapping_node(anchor)
        told: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in told:
                raise yaml.MarkedYAMLError(problem=f"the key '{key.value}' is given twice", problem_mark=key.start_mark)
            told.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return node


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line and quotes whatever YAML 1.1 or 1.2 could take for something else than text."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        numeric = all(isinstance(item, int | float | list | tuple) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=numeric)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Yaml12.yaml_implicit_resolvers = {}

for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    for _class in (_Yaml12, _Dumper):  # the dumper keeps YAML 1.1's as well
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_Yaml12.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])


def read(path: Path) -> tuple[dict[Any, Any], str]:
    """Return the mapping in the YAML at `path`, and its text; UsageError, one line with the file, for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; give the YAML that `iotwin fit` wrote, or workload=NAME") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from None
    raw = parse(text, str(path))
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: is not a workload: it should hold sections such as dataset: and train:")
    return raw, text


def parse(text: str, where: str) -> Any:
    """Return what the YAML `text` holds; UsageError, naming `where` and the line, when it is none."""
    try:
        # The loader is a SafeLoader: it makes scalars, lists and dicts only.
        return yaml.load(text, Loader=_Yaml12)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line}: is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not YAML: {' '.join(str(error).split())}") from None


def dump(config: Config, path: Path | str) -> None:
    """Write `config` as a YAML that `load` reads back equal; the file at `path` is replaced whole or not at all.

    Keys with their default value are left out, but for those in _ALWAYS_TOLD.
    """
    path = Path(path)
    kept = _told(msgspec.to_builtins(config), msgspec.to_builtins(Config()), "")
    text = f"# An I/O twin; run it with: iotwin emulate {path.name}\n" + yaml.dump(
        kept, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=130, allow_unicode=True
    )
    write_whole(path, text.encode("utf-8"))


def _told(value: dict[str, Any], default: dict[str, Any], at: str) -> dict[str, Any]:
    told = {}
    for key, item in value.items():
        path, usual = f"{at}{key}", default[key]
        if isinstance(usual, dict) and path != _FREE_SECTION:
            if inner := _told(item, usual, f"{path}."):
                told[key] = inner
        elif item is not None and (item != usual or path in _ALWAYS_TOLD):
            told[key] = _without_none(item)
    return told


def _without_none(value: Any) -> Any:
    """Drop the fields that are None: the YAML says what is known."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
