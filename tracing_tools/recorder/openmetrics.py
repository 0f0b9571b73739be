"""The sums of a recording as OpenMetrics, on a port for Prometheus, or in a file for node_exporter's textfile collector."""

import errno
import importlib
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iotwin.common.errors import IotwinError, UsageError, reason_of
from iotwin.common.files import check_output, write_whole
from iotwin.common.progress import note, show_line
from iotwin.tracing_tools.recorder.live_tally import BUCKETS_PER_OCTAVE, GROUP_OF_OP, KINDS, OPS, READ, WRITE, LiveTally

_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LOOPBACK, _LAST_PORT = "127.0.0.1", 65535
_ADDRESS = re.compile(r"(?:(?P<host>[^/:]*|\[[^/]*\]):)?(?P<port>\d{1,5})")
_FIRST_OCTAVE, _LAST_OCTAVE, _STEP = 10, 34, 2  # upper bounds of the buckets: 2**10 ns, 2**12 ns, ..., 2**34 ns (17 s)
HELPS = {
    "iotwin_io_bytes": ("counter", "Bytes that finished read and write calls transferred."),
    "iotwin_io_calls": ("counter", "Finished calls."),
    "iotwin_io_seconds": ("histogram", "Time in calls, from entry to exit."),
    "iotwin_stall_seconds": ("counter", "Time in which the main thread of a rank waited or read the data set."),
    "iotwin_training_seconds": ("counter", "Time since a rank first read the data set, until it ended."),
    "iotwin_au_ratio": ("gauge", "Share of a rank's training time in which it did not stall, so far."),
    "iotwin_lost_events": ("counter", "Calls that are missing from the trace and from the other metrics."),
}


@dataclass(frozen=True)
class MetricsOutput:
    """Where metrics go: to the file `path`, or to readers of the listening socket `listener`."""

    path: Path | None = None
    listener: socket.socket | None = None


def open_metrics(where: str) -> MetricsOutput:
    """Return the output that `where` names: a port, HOST:PORT or a file. Raises UsageError if it cannot be used.

    A port without a host is open on the loopback address alone.
    """
    address = _ADDRESS.fullmatch(where)
    if address is None:
        check_output(Path(where))
        return MetricsOutput(path=Path(where).absolute())
    importlib.import_module("http.server")  # as root, since the user may be unable to read it
    host, port = (address["host"] or _LOOPBACK).strip("[]"), int(address["port"])
    try:
        if port > _LAST_PORT:
            raise OSError(errno.EINVAL, f"ports end at {_LAST_PORT}")
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(found[:2], family=family)
    except OSError as error:
        raise UsageError(f"--metrics {where}: {reason_of(error)}; choose another port, or give a file") from None
    name, port = listener.getsockname()[:2]
    note(f"metrics: http://{f'[{name}]' if ':' in name else name}:{port}/metrics")
    return MetricsOutput(listener=listener)


class MetricsPage:
    """Publishes the metrics each time that `update` is called. Readers of the port get the last ones."""

    def __init__(self, output: MetricsOutput) -> None:
        self._path, self._content, self._has_failed = output.path, b"# EOF\n", False
        if output.listener is not None:
            self._serve(output.listener)

    def update(self, tally: LiveTally, lost: Mapping[str, int]) -> None:
        """Publish the sums of `tally` and the number of events lost so far, by cause."""
        lines = metric_lines(tally, lost, time.monotonic_ns())
        self._content = "".join(f"{line}\n" for line in lines).encode()
        if self._path is None:
            return
        try:
            write_whole(self._path, self._content)
        except (IotwinError, OSError) as error:
            if not self._has_failed:
                show_line(f"the metrics cannot be written: {error}")
            self._has_failed = True

    def _serve(self, listener: socket.socket) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0

            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in ("/", "/metrics")
                content = page._content if is_known else b"see /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", _CONTENT_TYPE if is_known else "text/plain")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing, since the job uses the terminal."""

        server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()


def metric_lines(tally: LiveTally, lost: Mapping[str, int], now_ns: int) -> Iterator[str]:
    """Yield the lines of the OpenMetrics text of `tally` at the time `now_ns`, without ends of lines."""
    labels = [f'rank="{rank}",op="{OPS[op]}"' for rank, op in tally.pairs]
    moves = np.isin(GROUP_OF_OP[[op for _, op in tally.pairs]], (READ, WRITE))
    yield from _head("iotwin_io_bytes")
    yield from _cells("iotwin_io_bytes_total", labels, np.where(moves[:, None], tally.calls, 0), tally.bytes)
    yield from _head("iotwin_io_calls")
    yield from _cells("iotwin_io_calls_total", labels, tally.calls, tally.calls)
    yield from _head("iotwin_io_seconds")
    octaves = range(_FIRST_OCTAVE, _LAST_OCTAVE + 1, _STEP)
    below = np.cumsum(tally.latencies, axis=1)[:, [octave * BUCKETS_PER_OCTAVE - 1 for octave in octaves]]
    for label, counts, total, seconds in zip(labels, below.tolist(), tally.calls.sum(1).tolist(), tally.seconds, strict=True):
        for octave, count in zip(octaves, counts, strict=True):
            yield f'iotwin_io_seconds_bucket{{{label},le="{2**octave / 1e9}"}} {count}'
        yield f'iotwin_io_seconds_bucket{{{label},le="+Inf"}} {total}'
        yield f"iotwin_io_seconds_count{{{label}}} {total}"
        yield f"iotwin_io_seconds_sum{{{label}}} {seconds:.9f}"
    yield from _head("iotwin_stall_seconds")
    for rank, stall_s in sorted(tally.stall_s.items()):
        yield f'iotwin_stall_seconds_total{{rank="{rank}"}} {stall_s:.9f}'
    training_s = sorted(tally.training_s(now_ns).items())
    yield from _head("iotwin_training_seconds")
    for rank, trained_s in training_s:
        yield f'iotwin_training_seconds_total{{rank="{rank}"}} {trained_s:.9f}'
    yield from _head("iotwin_au_ratio")
    for rank, trained_s in training_s:
        if trained_s:
            yield f'iotwin_au_ratio{{rank="{rank}"}} {max(1 - tally.stall_s.get(rank, 0.0) / trained_s, 0.0):.6f}'
    yield from _head("iotwin_lost_events")
    yield f"iotwin_lost_events_total {sum(lost.values())}"
    yield "# EOF"


def _head(name: str) -> Iterator[str]:
    kind, text = HELPS[name]
    yield f"# TYPE {name} {kind}"
    yield f"# HELP {name} {text}"


def _cells(name: str, labels: list[str], shown: np.ndarray, values: np.ndarray) -> Iterator[str]:
    """Yield a line for each cell of `values`, shape (labels, KINDS), whose cell in `shown` is not 0."""
    for row, kind in np.argwhere(shown).tolist():
        yield f'{name}{{{labels[row]},kind="{KINDS[kind]}"}} {values[row, kind]}'
