"""The report: one HTML file that holds its data, its scripts and its style, and fetches nothing."""

import base64
import hashlib
import html
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.common.files import check_output, check_type, write_whole
from iotwin.common.progress import progress
from iotwin.trace_store.parallel_fold import Workers, workers
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals import style
from iotwin.trace_visuals.labels import trace_labels
from iotwin.trace_visuals.report.analysis import Analysis, Detail, analyse
from iotwin.trace_visuals.report.comparison import comparison_documents
from iotwin.trace_visuals.report.page_data import trace_document
from iotwin.trace_visuals.report.response_table import response_document
from iotwin.trace_visuals.windows import choose_view

# Script files of the page, in the order in which it runs them.
_SCRIPTS = (
    "page_units.js",
    "page_theme.js",
    "page_data.js",
    "page_timeline.js",
    "page_tables.js",
    "page_charts.js",
    "page_heatmap.js",
    "page_overview.js",
    "page.js",
)
_SERVED_SCRIPTS = ("page_detail.js", *_SCRIPTS)
_BINS, _CALLS = 32_768, 160_000  # most bins of time, and most single calls, on a page, for all traces together
_MOST_TRACES = 8
_WORTH_PROCESSES = 8_000_000  # from this many events on, several worker processes are faster than one

Verdicts = Sequence[Mapping[str, Any] | None]  # for each trace, the fields of a verdict that `answers_to` reads


def write_report(
    paths: list[Path],
    output: Path,
    dask: str | None = None,
    open_trace: Callable[[Path], Trace] = Trace,
    repeats: Sequence[Path] = (),
    response: Path | None = None,
    verdicts: Verdicts = (),
) -> list[Analysis]:
    """Write the report of the traces at `paths` to `output` (.html), and return the analysis of each trace.

    `dask`: address of a Dask scheduler, if its workers are to be used. `open_trace` opens a trace. `repeats`: traces of reruns of
    the first trace's job. `response`: the file that `iotwin twin respond` wrote. `verdicts`: for each trace, what limits
    its job, or None. Raises UsageError if `output` is not .html or there are too many traces, IotwinError if a trace cannot be
    read or the page cannot be written.
    """
    check_type(output, (".html", ".htm"))
    check_output(output)
    check_number(paths)
    traces = [open_trace(path) for path in paths]
    table = {} if response is None else {"response": response_document(response)}
    view = choose_view(traces, None)
    detail = Detail(bins=1 << (_BINS // len(traces)).bit_length() - 1, most_calls=_CALLS // len(traces))
    zeros, events = [window.zero_ns for window in view.windows], sum(trace.manifest.events for trace in traces)
    with workers(dask, traces, _WORTH_PROCESSES) as each:
        # Each trace is read twice.
        with progress("report: reading calls", 2 * events, "calls") as advance:
            analyses = analyse(traces, trace_labels(paths), zeros, detail, each, advance)
        document = report_document(analyses, view.axis_label, each, [Trace(path) for path in repeats], verdicts) | table
    write_whole(output, page(document).encode("utf-8"))
    return analyses


def check_number(paths: list[Path]) -> None:
    """Raise UsageError if there are more traces than a page can show."""
    if len(paths) > _MOST_TRACES:
        raise UsageError(f"a report holds at most {_MOST_TRACES} traces, not {len(paths)}; make several reports")


def report_document(
    analyses: list[Analysis],
    axis_label: str,
    each: Workers | None = None,
    repeats: Sequence[Trace] = (),
    verdicts: Verdicts = (),
) -> dict[str, Any]:
    """Return the data of the page as a JSON document. The first trace is compared with each of the others.

    The page shows phases that fit infers, but scores count only phases that the jobs logged.
    """
    groups = {**style.GROUP_COLOURS}
    groups |= {f"block {name}": colour for name, colour in style.BLOCK_COLOURS.items()}
    groups |= {f"device {name}": colour for name, colour in style.DEVICE_COLOURS.items()}
    groups |= {f"checkpoint {name}": colour for name, colour in style.CHECKPOINT_COLOURS.items()}
    return {
        "axis": axis_label,
        "colours": {"groups": groups, "phases": style.PHASE_COLOURS, "cpu": style.CPU_COLOURS, "traces": style.TRACE_COLOURS},
        "traces": [trace_document(*pair) for pair in zip(analyses, verdicts or [None] * len(analyses), strict=True)],
        "comparisons": comparison_documents(
            [Trace(found.trace.path) for found in analyses], [found.label for found in analyses], each, repeats
        ),
    }


def page(document: dict[str, Any], served: bool = False) -> str:
    """Return the HTML page with the document in it. If `served`, the page may request finer detail from its server."""
    files = resources.files("iotwin.trace_visuals.report")
    css = (files / "report.css").read_text("utf-8")
    script = '"use strict";\n' + "\n".join(
        (files / name).read_text("utf-8") for name in (_SERVED_SCRIPTS if served else _SCRIPTS)
    )
    title = "iotwin report: " + ", ".join(trace["label"] for trace in document["traces"])
    allowed = f"script-src '{_digest(script)}'; style-src '{_digest(css)}'" + ("; connect-src 'self'" if served else "")
    parts = {
        "policy": f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        "title": html.escape(title),
        "css": css,
        "script": script,
        "data": _inert_json(document),
    }
    template = (files / "report.html").read_text("utf-8")
    # One pass over the template, so that inserted text is never searched for placeholders.
    pieces = template.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _digest(text: str) -> str:
    """Return the hash of a script or style, by which the page's content security policy allows it and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert_json(document: dict[str, Any]) -> str:
    """Return JSON in which no HTML parser finds markup, even if a name in a trace contains '</script>'."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
