"""The result of `iotwin size` in sentences: demand, needs, all limits at once, and what was assumed."""

from collections.abc import Iterator
from typing import Any

from iotwin.common.units import counted, format_size
from iotwin.loops.size.size_files import limit_text
from iotwin.tracesim.verdict.equivalence_sentences import lines_of_caveats


def sentences_of(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that follow the table of needs."""
    demand = document["demand"]
    if demand is not None:
        window = demand["window"]
        yield (
            f"demand, {window['phase']} ({window['begin_s']:.1f} to {window['end_s']:.1f} s): "
            f"{format_size(demand['mean_bytes_per_s'])}/s on average, {format_size(demand['p99_bytes_per_s'])}/s at the 99th "
            f"percentile, {format_size(demand['peak_1s_bytes_per_s'])}/s in the busiest second; "
            f"{demand['mean_requests_per_s']:.4g} reads/s"
        )
    for need in document["needs"]:
        name = f"{need['axis']}, {need['cache']}"
        if need["edge"] == "not reached":
            yield f"{name}: even the tightest limit tried, {limit_text(need)}, keeps the target"
        elif need["edge"] == "too slow":
            yield f"{name}: no limit tried keeps the target, up to {limit_text(need, 'high')}"
    for row in document["together_by_cache"]:
        yield _together(row, document)
    yield from (f"assumed: {text}" for text in document["assumptions"])
    files = f"size.json, table.csv, table.tex and size.pdf in {document['output']}"
    yield f"{counted(document['runs'], 'run')} of {document['twin']}; {files}"
    yield from lines_of_caveats(document["caveats"])


def _together(row: dict[str, Any], document: dict[str, Any]) -> str:
    figure = row["figure"]
    limits = [
        f"{axis} {limit_text({'axis': axis, 'least': value})}"
        for axis, value in (*((axis, row[axis]) for axis in ("bandwidth", "requests", "latency")), ("cache", row["cache_bytes"]))
        if value is not None
    ]
    result = f"keep {document['target']} ({figure:.3f})" if row["holds"] else f"do not keep {document['target']} ({figure:.3f})"
    return f"together, {row['cache']}: {', '.join(limits) or 'no limits'} {result}"
