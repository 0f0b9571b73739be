"""Show the result of ``iotwin twin respond`` as a table of the report."""

import math
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign_struct


class _ResponseColumn(msgspec.Struct):
    seconds: float


class _Change(msgspec.Struct):
    change: str
    of: str
    twin: _ResponseColumn
    job: _ResponseColumn | None = None
    ratio: float | None = None
    first_epoch_ratio: float | None = None
    not_in_force: list[str] = []


class _Response(msgspec.Struct):
    changes: list[_Change]


_COLUMNS = ("storage", "of", "job_ns", "twin_ns", "ratio", "first_epoch_ratio")


def response_document(path: Path) -> dict[str, Any]:
    """Return the table of the response at `path`, a row for each change of storage. Raises IotwinError if it is no response."""
    try:
        found = read_foreign_struct(path, _Response)
    except FileNotFoundError:
        raise IotwinError(f"{path}: there is no such file; iotwin twin respond writes it") from None
    except IotwinError as error:
        raise IotwinError(f"{path} is no response of iotwin twin respond: {error}") from None
    rows = [
        [_storage(row), row.of, _ns(row.job), _ns(row.twin), _finite(row.ratio), _finite(row.first_epoch_ratio)]
        for row in found.changes
    ]
    return {"columns": list(_COLUMNS), "rows": rows, "total": len(rows)}


def _storage(row: _Change) -> str:
    return f"{row.change} (not in force)" if row.not_in_force else row.change


def _ns(side: _ResponseColumn | None) -> float | None:
    return None if side is None else _finite(side.seconds * 1e9)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
