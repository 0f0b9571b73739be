"""Read workloads from YAML 1.2 text, and write workloads as text that means the same in YAML 1.1 and 1.2."""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import yaml

from iotwin.common.errors import UsageError
from iotwin.common.files import write_whole
from iotwin.common.untrusted_files import read_foreign
from iotwin.workload_yaml.recorded_section import TwinRecorded
from iotwin.workload_yaml.schema import Config
from iotwin.workload_yaml.yaml12 import LARGEST_BYTES, add_scalars, parse, read_text

_FREE_SECTION = "storage.storage_options"  # the object store defines its keys, not the schema
# Keys that are written even with default values, since people search for these keys in a twin, or edit them.
_ALWAYS_WRITTEN = frozenset({
    "model.name", "framework", "workflow.train", "workflow.evaluation", "workflow.checkpoint", "dataset.data_folder",
    "dataset.format", "reader.data_loader", "reader.batch_size", "reader.batch_size_eval", "reader.read_threads",
    "reader.file_shuffle", "reader.sample_shuffle", "reader.preprocess_time", "train.epochs", "train.computation_time",
    "train.seed", "train.seed_change_epoch", "checkpoint.checkpoint_folder", "output.folder", "metric.au",
})  # fmt: skip
# The same for a twin that replays a recording. If the recording's batches are known, also the keys that can be edited.
_OF_RECORDING = frozenset({
    "dataset.data_folder", "checkpoint.checkpoint_folder", "output.folder", "twin.ranks", "twin.recorded.think_scale",
})  # fmt: skip
_OF_BATCHES = frozenset({
    "reader.batch_size", "reader.read_threads", "train.epochs", "train.computation_time", "train.computation_scale",
})  # fmt: skip

_SEAL = b"# iotwin wrote the lines above, which have the SHA-256 "  # followed by the digest, in the last line of every YAML


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line, and quotes every text that YAML 1.1 or 1.2 could parse as another type."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        numeric = all(isinstance(item, int | float | list | tuple) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=numeric)

    def ignore_aliases(self, data: Any) -> bool:
        return True


add_scalars(_Dumper)  # in addition to YAML 1.1's scalars


def read(path: Path) -> tuple[dict[Any, Any], str]:
    """Return (mapping in the YAML at `path`, text of the YAML).

    Raises UsageError if the file cannot be read or does not contain a mapping. The message is one line with the file.
    """
    if path.is_dir():
        hint = f"; make its twin: iotwin fit {path} -o twin.yaml" if (path / "events.parquet").exists() else ""
        raise UsageError(f"{path}: is a directory and cannot be read as a YAML{hint}")
    if not path.exists():
        raise UsageError(f"{path}: no such file; give the YAML that `iotwin fit` wrote, or workload=NAME")
    text = read_text(path)
    raw = parse(text, str(path))
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: is not a workload: it should hold sections such as dataset: and train:")
    return raw, text


def dump(config: Config, path: Path | str) -> None:
    """Write `config` to `path` as a YAML from which `load` returns an equal Config. The file is replaced whole or not at all.

    Keys with default values are omitted, except those that people edit. The last line, a comment, has a digest of the others.
    """
    path, usual = Path(path), msgspec.to_builtins(Config())
    always = _ALWAYS_WRITTEN
    if config.twin.recorded is not None:
        usual["twin"]["recorded"] = msgspec.to_builtins(TwinRecorded(file=""))
        always = _OF_RECORDING | (_OF_BATCHES if config.dataset.num_files_train is not None else frozenset())
    kept = _changed(msgspec.to_builtins(config), usual, always)
    text = f"# An I/O twin; run it with: iotwin emulate {path.name}\n" + yaml.dump(
        kept, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=130, allow_unicode=True
    )
    content = text.encode("utf-8")
    write_whole(path, content + _SEAL + _digest(content) + b"\n")


def check_unedited(path: Path) -> None:
    """Raise UsageError if `path` exists and somebody edited it after `dump` wrote it, since `dump` would overwrite the edits."""
    if not path.exists():
        return
    content, _, digest = read_foreign(path, LARGEST_BYTES).rpartition(_SEAL)
    if digest.strip() != _digest(content):
        raise UsageError(f"{path} was edited, or is not of iotwin; choose another file or add --force to replace it")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _changed(value: dict[str, Any], default: dict[str, Any], always: Collection[str], at: str = "") -> dict[str, Any]:
    changed = {}
    for key, item in value.items():
        path, usual = f"{at}{key}", default[key]
        if isinstance(usual, dict) and path != _FREE_SECTION:
            if inner := _changed(item, usual, always, f"{path}."):
                changed[key] = inner
        elif item is not None and (item != usual or path in always):
            changed[key] = plain(item)
    return changed


def plain(value: Any) -> Any:
    """Return `value`, nested mappings and lists, as dicts and lists without the fields that are None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
