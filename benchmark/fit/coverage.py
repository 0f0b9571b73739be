"""Coverage: which share of the bytes that a job read and wrote, and of its opens, the twin accounts for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.common.units import format_size
from iotwin.trace_store import schema

_DIRECTIONS = {"read": schema.READ_OPS, "write": schema.WRITE_OPS, "open": schema.OPEN_OPS}
KINDS = {"dataset": "data", "checkpoint": "checkpoints", "other": "other files"}
_VERBS = {"read": "read", "write": "written", "open": "opened"}


def coverage_of(calls: pd.DataFrame, kinds: NDArray[Any], twin: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Return, as JSON, the shares (0 to 1) of the job's reads, writes and opens that the twin accounts for, and their amounts.

    `calls`: the job's successful calls (op, file_id, result). `kinds`: kind of file, by file_id. `twin`: the twin's amounts by
    (direction, kind). Amounts are bytes; for opens, calls. A share is the smaller of the two amounts divided by the larger, so it
    is below 1 also if the twin does too much.
    """
    of_call, flows = np.append(kinds, "")[calls["file_id"].to_numpy(np.int64)], []
    for direction, ops in _DIRECTIONS.items():
        moves = calls["op"].isin(ops).to_numpy()
        for kind in KINDS:
            own = calls.loc[moves & (of_call == kind), "result"]
            seen, amount = len(own) if direction == "open" else int(own.sum()), round(twin.get((direction, kind), 0.0))
            if len(own) or amount:
                flows.append({"direction": direction, "kind": kind, "calls": len(own), "seen": seen, "twin": amount})
    return {f"{direction}_share": _share(flows, direction) for direction in _DIRECTIONS} | {"flows": flows}


def _share(flows: list[dict[str, Any]], direction: str) -> float:
    own = [(flow["seen"], flow["twin"]) for flow in flows if flow["direction"] == direction]
    whole = max(sum(seen for seen, _ in own), sum(twin for _, twin in own))
    return round(sum(map(min, own)) / whole, 4) if whole else 1.0


def describe_coverage(document: dict[str, Any]) -> str:
    """Describe a result of `coverage_of` in a line."""
    parts = []
    for direction, verb in _VERBS.items():
        flows = [flow for flow in document["flows"] if flow["direction"] == direction and (flow["seen"] or flow["twin"])]
        amounts = [f"{_amounts(flow)} {KINDS[flow['kind']]}" for flow in flows]
        if flows:
            parts.append(f"{document[f'{direction}_share']:.0%} of what is {verb} ({', '.join(amounts)})")
    return "the twin accounts for " + ("; ".join(parts) or "nothing: nothing is read or written")


def _amounts(flow: dict[str, Any]) -> str:
    """Return in words which part of the bytes that the job moved the twin moves."""
    twin, seen = (str(flow[name]) if flow["direction"] == "open" else format_size(flow[name]) for name in ("twin", "seen"))
    return f"{twin} {'instead of' if flow['twin'] > flow['seen'] and twin != seen else 'of'} {seen}"
