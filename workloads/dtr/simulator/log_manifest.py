"""Reads and writes manifests, which list logs of models, and caches the graphs of logs."""

import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import cache_folder, make_folder, open_whole, write_whole
from iotwin.common.untrusted_files import decode_foreign, open_foreign, read_foreign_struct, sha256_of
from iotwin.workloads.dtr.simulator.graph import Graph
from iotwin.workloads.dtr.simulator.log_format import read_log

_VERSION = 1
_ARRAYS = (
    "op_cost", "op_backward", "op_constant", "arg_start", "args", "out_start", "tensor_op", "tensor_size", "tensor_alias",
    "tensor_storage", "storage_size", "storage_root", "items",
)  # fmt: skip


@dataclass(frozen=True)
class LoggedModel:
    """One model of a manifest: its names, a description, and the path of its `log`."""

    name: str
    title: str
    desc: str
    log: Path
    has_start: bool = True


class _ManifestRow(msgspec.Struct):
    name: str
    log: str
    title: str = ""
    desc: str = ""
    has_start: bool = True


class _Manifest(msgspec.Struct):
    models: list[_ManifestRow]


def read_manifest(path: Path) -> list[LoggedModel]:
    """Return the models of a manifest. Paths of logs are relative to its folder or, in the authors' manifests, to the parent."""
    try:
        rows = read_foreign_struct(path, _Manifest).models
    except IotwinError as error:
        raise UsageError(f"{path} is not a manifest of logs: {error}") from None
    models = []
    for row in rows:
        candidates = [path.parent / row.log, path.parent.parent / row.log]
        found = next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113 - no OSError if a name is too long
        if found is None:
            raise UsageError(f"{path}: {row.log}, the log of '{row.name}', does not exist")
        models.append(LoggedModel(row.name, row.title or row.name, row.desc, found, row.has_start))
    return models


def write_manifest(path: Path, models: list[LoggedModel]) -> None:
    """Write the manifest `path`, which must be in the directory of the logs of `models`."""
    rows = [{"name": m.name, "title": m.title, "desc": m.desc, "log": m.log.name, "has_start": m.has_start} for m in models]
    write_whole(path, json.dumps({"models": rows}, indent=2).encode() + b"\n")


def models_of(paths: list[Path]) -> list[LoggedModel]:
    """Return the models of all `paths`: manifests (.json) or logs (any other name). Raises UsageError if a path is not a file."""
    found: list[LoggedModel] = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path} is not a file")
        found += read_manifest(path) if path.suffix == ".json" else [LoggedModel(path.stem, path.stem, "", path)]
    return found


def load_graph(path: Path, preallocate: bool = False) -> Graph:
    """Return the graph of a log, from the user's cache if the same content was read before. `preallocate`: see `read_log`."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    kept = cache_folder() / "dtr" / f"{sha256_of(path)}-{_VERSION}{'-preallocate' * preallocate}.npz"
    try:
        return _unpack(kept)
    except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, IotwinError):
        pass
    graph = read_log(path, preallocate).graph
    try:
        make_folder(kept.parent)
        with open_whole(kept) as file:
            texts = msgspec.json.encode([graph.op_names, graph.tensor_names, graph.output_bytes])
            arrays = {name: getattr(graph, name) for name in _ARRAYS}
            np.savez(file, **arrays, texts=np.frombuffer(texts, dtype=np.uint8))
    except (IotwinError, OSError):
        pass  # the cache cannot be written, so the next call reads the log again
    return graph


def _unpack(path: Path) -> Graph:
    with open_foreign(path) as file, np.load(file, allow_pickle=False) as found:
        ops, tensors, output = decode_foreign(found["texts"].tobytes(), tuple[list[str], list[str], int], path)
        arrays = {name: found[name] for name in _ARRAYS}
    return Graph(op_names=ops, tensor_names=tensors, output_bytes=output, **arrays)
