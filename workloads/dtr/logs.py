"""Logs by name: manifests of models, and graphs that are read once and kept by their content."""

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from common.errors import IotwinError, UsageError
from common.files import open_whole, write_whole
from workloads.dtr.graph import Graph
from workloads.dtr.log_format import read_log

_VERSION = 1
_ARRAYS = (
    "op_cost", "op_backward", "op_constant", "arg_start", "args", "out_start", "tensor_op", "tensor_size", "tensor_alias",
    "tensor_storage", "storage_size", "storage_root", "items",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A row of a manifest; `log` is the file."""

    name: str
    title: str
    desc: str
    log: Path
    has_start: bool = True


class _Row(msgspec.Struct):
    name: str
    log: str
    title: str = ""
    desc: str = ""
    has_start: bool = True


class _Manifest(msgspec.Struct):
    models: list[_Row]


def read_manifest(path: Path) -> list[Model]:
    """Return the models of a manifest; logs' names are relative to its directory, or, as the original's, to the one above."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=_Manifest).models
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no manifest of logs: {error}") from None
    models = []
    for row in rows:
        places = [path.parent / row.log, path.parent.parent / row.log]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise UsageError(f"{path}: the log of '{row.name}', {row.log}, is not there")
        models.append(Model(row.name, row.title or row.name, row.desc, found, row.has_start))
    return models


def write_manifest(path: Path, models: list[Model]) -> None:
    """Write a manifest beside its logs."""
    rows = [{"name": m.name, "title": m.title, "desc": m.desc, "log": m.log.name, "has_start": m.has_start} for m in models]
    write_whole(path, json.dumps({"models": rows}, indent=2).encode() + b"\n")


def models_of(paths: list[Path]) -> list[Model]:
    """Return the models of manifests (.json) and logs (anything else)."""
    found: list[Model] = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path} is not a file")
        found += read_manifest(path) if path.suffix == ".json" else [Model(path.stem, path.stem, "", path)]
    return found


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_graph(path: Path, preallocate: bool = False) -> Graph:
    """Return a log's graph, from the cache (by content) where it has been read before."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    kept = _cache() / f"{sha256_of(path)}-{_VERSION}{'-preallocate' * preallocate}.npz"
    try:
        return _unpack(kept)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, msgspec.DecodeError):
        pass
    graph = read_log(path, preallocate).graph
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(kept) as file:
            np.savez(file, **_pack(graph))
    except (IotwinError, OSError):
        pass  # a log is then read again next time
    return graph


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iotwin" / "dtr"


def _pack(graph: Graph) -> dict[str, Any]:
    texts = msgspec.json.encode([graph.op_names, graph.tensor_names, graph.output_bytes])
    return {name: getattr(graph, name) for name in _ARRAYS} | {"texts": np.frombuffer(texts, dtype=np.uint8)}


def _unpack(path: Path) -> Graph:
    with np.load(path, allow_pickle=False) as found:
        ops, tensors, output = msgspec.json.decode(found["texts"].tobytes())
        arrays = {name: found[name] for name in _ARRAYS}
    return Graph(op_names=ops, tensor_names=tensors, output_bytes=output, **arrays)
