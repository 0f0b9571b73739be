"""How much of what a job read, wrote and opened its twin accounts for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.common.units import format_size
from iotwin.trace_store import schema

_DIRECTIONS = {"read": schema.READ_OPS, "write": schema.WRITE_OPS, "open": schema.OPEN_OPS}
KINDS = {"dataset": "data", "checkpoint": "checkpoints", "other": "other files"}
_VERBS = {"read": "read", "write": "written", "open": "opened"}


@dataclass(frozen=True)
class Flow:
    """What the job and its twin do in one direction to one kind of file."""

    direction: str  # read | write | open
    kind: str
    calls: int
    seen: int  # bytes that the job moved; of opens, calls
    twin: float  # the same of the twin


def flows_of(calls: pd.DataFrame, kinds: NDArray[Any], twin: Mapping[tuple[str, str], float]) -> Iterator[Flow]:
    """Yield what `calls` (op, file_id, result: those that succeeded) move, and what the `twin` does; `kinds` by file_id."""
    of_call = np.append(kinds, "")[calls["file_id"].to_numpy(np.int64)]
    for direction, ops in _DIRECTIONS.items():
        moves = calls["op"].isin(ops).to_numpy()
        for kind in KINDS:
            own = calls.loc[moves & (of_call == kind), "result"]
            amount = twin.get((direction, kind), 0.0)
            if len(own) or amount:
                yield Flow(direction, kind, len(own), len(own) if direction == "open" else int(own.sum()), amount)


def document_of(flows: list[Flow]) -> dict[str, Any]:
    """Return as JSON the shares that the twin accounts for (0 to 1), and what they rest on by direction and kind of file.

    A share is the smaller amount over the larger one, so that too much counts like too little.
    """
    document: dict[str, Any] = {}
    for direction in _DIRECTIONS:
        own = [(flow.seen, flow.twin) for flow in flows if flow.direction == direction]
        whole = max(sum(seen for seen, _ in own), sum(twin for _, twin in own))
        document[f"{direction}_share"] = round(sum(map(min, own)) / whole, 4) if whole else 1.0
    document["flows"] = [
        {"direction": flow.direction, "kind": flow.kind, "calls": flow.calls, "seen": flow.seen, "twin": round(flow.twin)}
        for flow in flows
    ]
    return document


def describe_coverage(document: dict[str, Any]) -> str:
    """Return a coverage (as of `document_of`) in a line."""
    parts = []
    for direction, verb in _VERBS.items():
        flows = [flow for flow in document["flows"] if flow["direction"] == direction and (flow["seen"] or flow["twin"])]
        amounts = [f"{_amounts(flow)} {KINDS[flow['kind']]}" for flow in flows]
        if flows:
            parts.append(f"{document[f'{direction}_share']:.0%} of what is {verb} ({', '.join(amounts)})")
    return "the twin accounts for " + ("; ".join(parts) or "nothing: nothing is read or written")


def _amounts(flow: dict[str, Any]) -> str:
    """Return the twin's part of what the job moved, in words."""
    twin, seen = (str(flow[name]) if flow["direction"] == "open" else format_size(flow[name]) for name in ("twin", "seen"))
    return f"{twin} {'instead of' if flow['twin'] > flow['seen'] and twin != seen else 'of'} {seen}"
