"""Serve a report to a browser on this machine. As the user zooms in, finer detail is read from Parquet."""

import contextlib
import dataclasses
import hmac
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow.compute as pc

from iotwin.common.progress import progress
from iotwin.trace_store.parallel_fold import in_this_process
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.bins import Grid, LaneBins
from iotwin.trace_visuals.call_columns import read_calls
from iotwin.trace_visuals.labels import trace_labels
from iotwin.trace_visuals.report.analysis import Analysis, Detail, analyse, with_requests
from iotwin.trace_visuals.report.page_data import calls_document, lanes_document, lanes_shown
from iotwin.trace_visuals.report.report_page import Verdicts, check_number, page, report_document
from iotwin.trace_visuals.report.slowest_calls import EveryCall
from iotwin.trace_visuals.report.timeline_rows import LanePlan
from iotwin.trace_visuals.windows import choose_view

_BINS = 8_192  # bins of time on the page, for all traces together; the server computes finer bins on request
_DETAIL_BINS, _DETAIL_CALLS = 4_096, 40_000
_SECOND = 1e9
_MOST_CONNECTIONS = 32  # a browser opens six connections
_REQUEST_S = 10  # a request must arrive whole within this time
_IDLE_S = 30  # a client that reads nothing of its answer for this long is disconnected


class ReportServer:
    """Serves the report of traces on the loopback address, under a secret path, within a `with` block.

    Raises UsageError if there are too many traces, IotwinError if one cannot be read.
    """

    def __init__(
        self,
        paths: list[Path],
        port: int = 0,
        open_trace: Callable[[Path], Trace] = Trace,
        verdicts: Verdicts = (),
    ) -> None:
        check_number(paths)
        traces = [open_trace(path) for path in paths]
        view = choose_view(traces, None)
        detail = Detail(bins=1 << (_BINS // len(traces)).bit_length() - 1, most_calls=0)
        with progress("view: reading calls", 2 * sum(trace.manifest.events for trace in traces), "calls") as advance:
            zeros = [window.zero_ns for window in view.windows]
            analyses = analyse(traces, trace_labels(paths), zeros, detail, in_this_process, advance)
        self._details = [_DetailReader(analysis) for analysis in analyses]
        document = report_document(analyses, view.axis_label, verdicts=verdicts) | {"served": True}
        self._page = page(document, served=True).encode("utf-8")
        self._token = secrets.token_urlsafe(24)
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """URL of the page."""
        return f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def __enter__(self) -> "ReportServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, host: str, target: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and content for a request. No part of the request is used as the name of a file.

        `host` must be this server's own address, since a page of another site could reach the server by another name.
        """
        try:
            parts = urlsplit(target)
        except ValueError:  # brackets around something that is no IP address
            return HTTPStatus.NOT_FOUND, "text/plain", b"not here\n"
        token, _, name = parts.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())
        if host not in (f"127.0.0.1:{self._server.server_port}", f"localhost:{self._server.server_port}") or not known:
            return HTTPStatus.NOT_FOUND, "text/plain", b"not here\n"
        if name == "":
            return HTTPStatus.OK, "text/html; charset=utf-8", self._page
        if name != "detail":
            return HTTPStatus.NOT_FOUND, "text/plain", b"not here\n"
        try:
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            detail = self._details[int(query["trace"])] if query["trace"].isdecimal() else None
            begin, end = float(query["from"]), float(query["to"])
        except (KeyError, ValueError, IndexError):
            detail, begin, end = None, 0.0, 0.0
        if detail is None or not (-1e9 < begin < end < 1e9):
            return HTTPStatus.BAD_REQUEST, "text/plain", b"detail takes trace, from and to\n"
        return HTTPStatus.OK, "application/json", json.dumps(detail.document(begin, end), allow_nan=False).encode()


class _Server(ThreadingHTTPServer):
    """Serves at most _MOST_CONNECTIONS connections. A further one replaces the oldest whose request is still incomplete."""

    daemon_threads = True
    request_queue_size = 128  # connections not yet accepted; a client that finds the queue full tries again a second later

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._incomplete: dict[socket.socket, float] = {}  # monotonic time (s) at which each connection was opened, oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a separate thread. If all threads are busy with answers, close the connection."""
        if not self._free.acquire(blocking=False) and not (self._close_incomplete(1) and self._free.acquire(timeout=_REQUEST_S)):
            self.shutdown_request(request)
            return
        with self._lock:
            self._incomplete[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then allow a further connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def service_actions(self) -> None:
        """Close the connections whose request is overdue; called at least twice a second."""
        begun = time.monotonic() - _REQUEST_S
        self._close_incomplete(sum(opened < begun for opened in list(self._incomplete.values())))

    def is_complete(self, request: socket.socket) -> None:
        """Note that the whole request has arrived, so that its connection is not closed for a newer one."""
        with self._lock:
            self._incomplete.pop(request, None)

    def _end(self, request: socket.socket) -> None:
        self.is_complete(request)
        self._free.release()

    def _close_incomplete(self, count: int) -> int:
        """Close the `count` oldest connections with incomplete requests, whose threads then end. Return how many were closed."""
        with self._lock:
            overdue = list(self._incomplete)[:count]
            for request in overdue:
                del self._incomplete[request]
                with contextlib.suppress(OSError):  # the client has gone
                    request.shutdown(socket.SHUT_RDWR)
        return len(overdue)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a page that is closed while it loads; report anything else as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(server: ReportServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_S

        def version_string(self) -> str:
            return "iotwin"

        def do_GET(self) -> None:
            cast(_Server, self.server).is_complete(self.connection)
            status, content_type, content = server.answer(self.headers.get("Host", ""), self.path)
            self.send_response(status)
            headers = {
                "Content-Type": content_type,
                "Content-Length": str(len(content)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler


class _DetailReader:
    """Reads finer detail of one trace within a range of time, for the same lanes (rows) as the page."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._shown = lanes_shown(analysis)
        self._plan = LanePlan(analysis.trace.processes(), analysis.survey.busiest)
        operations = analysis.operations.latency_ns
        self._longest_ns = operations.most(list(range(len(operations.counts))))
        self._lock = threading.Lock()  # only one request reads the trace at a time, so that memory is bounded

    def document(self, begin_s: float, end_s: float) -> dict[str, Any]:
        """Return the lanes, and the calls if they are few, from `begin_s` to `end_s` (seconds from the page's zero)."""
        analysis = self._analysis
        begin, end = (int(analysis.zero_ns + moment * _SECOND) for moment in (begin_s, end_s))
        bins = LaneBins(Grid.covering(begin, max(end, begin + 1), _DETAIL_BINS), len(self._plan.names))
        every, found = EveryCall(), 0
        ops = list(analysis.ops)
        with self._lock:
            # A call that is in flight at `begin` may have started earlier, by at most the duration of the longest call.
            where = (pc.field("start_ns") >= begin - self._longest_ns) & (pc.field("start_ns") < end)
            for calls in read_calls(analysis.trace, ops, where):
                calls = calls.pick(np.flatnonzero(calls.end_ns >= begin))
                of_calls = self._plan.lanes(calls)
                for lane in of_calls:
                    bins.add(calls, lane)
                found += len(calls)
                if found <= _DETAIL_CALLS:
                    every.add(calls, of_calls[0])
            names, lanes = with_requests(analysis.trace, self._plan.names, bins.result())
        calls_found = every.result() if found <= _DETAIL_CALLS else None
        here = dataclasses.replace(analysis, lane_names=names, lanes=lanes, every_call=calls_found, ops=ops)
        return {"lanes": lanes_document(here, self._shown), "calls": calls_document(here, self._shown)}
