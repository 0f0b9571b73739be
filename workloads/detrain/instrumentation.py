"""The document inst.json: which lines of a training script are its loops, its data call and its weight update."""

import ast
import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import struct_json, write_whole
from iotwin.common.untrusted_files import read_foreign, read_foreign_struct

VERSION = 1
SURE = 0.5  # below this confidence a script runs only with --force
MOST_SOURCE_BYTES = 16 << 20
_LONGEST_TEXT = 200

# How a script gets its batches.
Kind = Literal["FOR_OVER_LOADER", "NEXT_CALL", "INDEXED", "GENERATOR", "FRAMEWORK", "NONE"]


class SourceLine(msgspec.Struct, frozen=True):
    """The line, from 1, at which a statement of a source file begins."""

    file: str  # absolute path
    line: Annotated[int, msgspec.Meta(ge=1)]


class CallLine(SourceLine, frozen=True):
    """A line with the text of the call there, such as `next(batches)`."""

    call: str = ""


class Wrapper(msgspec.Struct, frozen=True):
    """The function that both gets a batch and updates the weights, if another module's loop calls it."""

    module: str
    function: str


KERAS_FIT = Wrapper("keras", "Model.fit")  # the wrapper of scripts whose loops are Keras's


class BatchSource(msgspec.Struct, frozen=True):
    """The object that yields the batches. `persistent`: it is the same object in all epochs."""

    name: str
    persistent: bool = True


class Instrumentation(msgspec.Struct, frozen=True, kw_only=True):
    """The loops of a script. Lines are those of the `for` or `while`, or of the statement that makes the call.

    `sources`: SHA-256 of each file that a line names. `sinks`: all calls that update weights. `reasons`: evidence for and against
    this result, in words. `confirmed`, `iterations` and `reads_in_data_call` are None or 0 unless `confirm` ran the script.
    """

    version: int = VERSION
    script: str
    source_sha256: str  # digest of the script
    sources: dict[str, str]
    kind: Kind
    epoch: SourceLine | None = None
    batch: SourceLine | None = None
    data: CallLine | None = None
    update: CallLine | None = None
    sinks: list[CallLine] = []
    wrapper: Wrapper | None = None
    loader: BatchSource | None = None
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    confirmed: bool | None = None
    iterations: int = 0
    reads_in_data_call: int | None = None
    reasons: list[str] = []
    seconds: float = 0.0


def shown_source(node: ast.AST) -> str:
    """Return the source text of a node, cut if it is long."""
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def source_sha256(path: Path) -> str:
    """Return the SHA-256 of a source file. Raises IotwinError if it cannot be read."""
    return hashlib.sha256(read_foreign(path, MOST_SOURCE_BYTES)).hexdigest()


def read_instrumentation(path: Path) -> Instrumentation:
    """Read inst.json. Raises IotwinError if the file is invalid or of another version."""
    found = read_foreign_struct(path, Instrumentation)
    if found.version != VERSION:
        raise IotwinError(f"{path}: is of version {found.version}; this iotwin reads {VERSION}; discover the script again")
    return found


def write_instrumentation(path: Path, found: Instrumentation) -> None:
    """Write inst.json atomically."""
    write_whole(path, struct_json(found))


def changed_sources(found: Instrumentation) -> list[str]:
    """Return the files in `found.sources` that are missing, or have changed since the document was written."""
    changed = []
    for file, digest in found.sources.items():
        try:
            if source_sha256(Path(file)) != digest:
                changed.append(file)
        except IotwinError:
            changed.append(file)
    return changed
