"""The server behind a report: finer detail to a real browser, and nothing to anybody else."""

import http.client
import json
import re
import signal
import socket

import numpy as np
import pytest

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.report import view
from iotwin.trace_visuals.report.view import ReportServer
from tests.conftest import PATIENCE_S
from tests.processes import call, one_line, start
from tests.synthetic import Job, write_job
from tests.trace_visuals.report.test_browser import _change, _ink, _point, _until
from tests.trace_visuals.report.test_browser import pytestmark as browser_marks


def _with_browser(test):
    for mark in browser_marks:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("view") / "real.trace", Job(block=True, gpu=True, parts=True))


@pytest.fixture
def server(trace, monkeypatch):
    monkeypatch.setattr(view, "_BINS", 64)
    with ReportServer([trace]) as running:
        yield running


def _get(server, path, host=None, method="GET"):
    port = int(re.search(r":(\d+)/", server.url)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_it_answers_only_under_its_token_and_name(server):
    root = "/" + server.url.split("/")[3] + "/"
    assert len(root) > 30 and server.url.startswith("http://127.0.0.1:")
    status, page = _get(server, root)
    assert status == 200 and b"connect-src 'self'" in page and b'"served":true' in page
    for path in ("/", "/detail?trace=0&from=0&to=1", root[:-3] + "/", root + "../../etc/passwd", root + "manifest.json",
                 root + "%2e%2e/x", root + "report.html", root + "detail/"):  # fmt: skip
        assert _get(server, path)[0] == 404, path
    assert _get(server, root, host="evil.example")[0] == 404
    assert _get(server, root, method="POST")[0] == 501
    for query in ("", "trace=0", "trace=1&from=0&to=1", "trace=-1&from=0&to=1", "trace=0&from=1&to=0", "trace=0&from=nan&to=1",
                  "trace=0&from=0&to=inf", "trace=x&from=0&to=1", "trace=%D9%A3&from=0&to=1"):  # fmt: skip
        assert _get(server, f"{root}detail?{query}")[0] == 400, query


def test_nobody_else_can_connect(server):
    port = int(re.search(r":(\d+)/", server.url)[1])
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(OSError), socket.create_connection((address, port), timeout=5):
            pass


def _unpacked(packed):
    import base64
    import zlib

    values = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype=packed["type"])
    return values * packed["scale"]


def test_a_stretch_holds_exactly_its_calls(server, trace):
    root = "/" + server.url.split("/")[3] + "/"
    events = Trace(trace).events_frame()
    zero = Trace(trace).phases()["end_ns"].iloc[0]
    begin, end = 0.1, 0.35
    status, content = _get(server, f"{root}detail?trace=0&from={begin}&to={end}")
    document = json.loads(content)
    assert status == 200
    started = events["start_ns"].between(zero + begin * 1e9, zero + end * 1e9, inclusive="left")
    touching = (events["start_ns"] < zero + end * 1e9) & (events["start_ns"] + events["duration_ns"] >= zero + begin * 1e9)
    lanes = document["lanes"]
    names = [lane["title"] for lane in lanes["names"]]
    calls = _unpacked(lanes["calls"]).reshape(len(names), lanes["count"])
    assert calls[names.index("read")].sum() == (started & (events["op"] == "read")).sum() > 0
    kept = _unpacked(document["calls"]["start"])
    assert len(kept) == (touching & events["op"].isin(["read", "openat", "write", "fsync"])).sum()
    assert {"block read", "device kernel", "part all_compute"} <= {lane["group"] for lane in lanes["names"]}


@_with_browser
def test_zooming_in_brings_single_calls(server, browser):
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(server.url)
    _until(browser, "return document.body.dataset.ready === 'yes' && document.getElementById('range').dataset.from !== undefined")
    assert "comes from the server" in browser.find_element("id", "detail-note").text and _ink(browser) > 50
    show = browser.find_element("css selector", "#slowest-tables tbody button")
    _change(browser, show.click)
    _until(browser, "return document.body.dataset.detail !== undefined")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") > 0
    height = browser.execute_script("return document.getElementById('timeline-canvas').clientHeight")
    found = False
    for y in range(30, height - 30, 11):
        _point(browser, 148 + 350, y)
        tip = browser.find_element("id", "tooltip").text
        found = found or ("fsync 5 ms" in tip and "/data/out/epoch_" in tip)
        if found:
            break
    assert found
    assert browser.get_log("browser") == []
    fetched = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [message["params"]["request"]["url"] for message in fetched if message["method"] == "Network.requestWillBeSent"]
    assert any("detail?" in url for url in asked) and all(url.startswith(server.url) for url in asked), asked


def test_the_command_serves_until_ctrl_c(trace):
    process = start("view", trace)
    lines = iter(process.stderr.readline, "")
    line = next(line for line in lines if line.startswith("open http://"))
    port, token = re.search(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/", line).groups()
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
    connection.request("GET", f"/{token}/")
    answer = connection.getresponse()
    assert answer.status == 200
    connection.close()  # before the page is read, as by a closed tab
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "has ended" in output and "Traceback" not in errors


def test_bad_requests_are_one_line(trace, tmp_path):
    for arguments, status, expected in (
        ([trace, "--port", "70000"], 2, "is no port"),
        ([tmp_path / "none"], 1, "no such trace"),
        ([trace] * 9, 2, "at most 8"),
    ):
        result = call("view", *arguments)
        assert result.returncode == status and expected in one_line(result)
