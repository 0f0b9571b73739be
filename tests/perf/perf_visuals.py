"""Pictures, report, import and statistics of large traces: time, memory, and the report's page in a real browser."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.conftest import ROOT
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.perf_tracesim import write_loader_trace

_MIB = 1 << 20
_FRAMES_SCRIPT = """
    const done = arguments[arguments.length - 1], zoom = document.getElementById('timeline-canvas');
    const box = zoom.getBoundingClientRect();
    const at = { clientX: box.left + 500, clientY: box.top + 60, bubbles: true, cancelable: true };
    let left = 60, begin = performance.now();
    const step = () => {
      const deltaY = left > 30 ? -60 : 60;
      zoom.dispatchEvent(new WheelEvent('wheel', { deltaY, ...at }));
      left -= 1;
      if (left) requestAnimationFrame(step); else done(60 / ((performance.now() - begin) / 1000));
    };
    requestAnimationFrame(step);"""


def _timed(*arguments: str | Path) -> tuple[float, float]:
    """Run the command line; return its seconds and the MiB of its peak."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "iotwin.main", *map(str, arguments), "--quiet"], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def _pictures(trace: Path, scratch: Path, events: str) -> Iterator[Figure]:
    seconds, peak = _timed("plot", "timeline", trace, "-o", scratch / "t.png")
    yield Figure(f"timeline PNG of {events} events: s", seconds, 5)
    yield Figure(f"timeline PNG of {events} events: peak MiB", peak, 1536)
    seconds, peak = _timed("report", trace, "-o", scratch / "r.html")
    yield Figure(f"report of {events} events: s", seconds, 15, detail=f"peak {peak:.0f} MiB")
    yield Figure(f"report of {events} events: MiB of the page", (scratch / "r.html").stat().st_size / _MIB, 10)
    seconds, peak = _timed("stats", trace)
    yield Figure(f"stats of {events} events: s", seconds, detail=f"peak {peak:.0f} MiB")


def _browser(page: Path, events: str) -> Iterator[Figure]:
    """The page in headless Chromium: seconds from opening to the drawn timeline, and frames a second while the wheel turns."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        begin = time.perf_counter()
        driver.get(page.as_uri())
        ready = "return document.body.dataset.ready === 'yes' && document.getElementById('range').dataset.from !== undefined"
        while not driver.execute_script(ready):
            time.sleep(0.01)
        yield Figure(f"page of {events} events: s until it is drawn", time.perf_counter() - begin, 2)
        driver.set_script_timeout(120)
        frames = sorted(driver.execute_async_script(_FRAMES_SCRIPT) for _ in range(3))
        yield Figure(f"page of {events} events: frames/s while zooming", frames[1], 30, at_most=False, detail="median of 3")
    finally:
        driver.quit()


def _artifact_lines(path: Path, lines: int) -> None:
    """Write a trace_read.out as the artifact's bpftrace script does."""
    rng = random.Random(1)
    with path.open("w", encoding="ascii") as file:
        file.write("Attaching 2 probes...\nTIMESTAMP PID OFFSET RET LAT FILENAME\n")
        now = 10**12
        for i in range(lines):
            now += rng.randrange(1000, 100_000)
            torn = i % 100_000 == 99_999
            offset, took, case = i % 500 * 131072, rng.randrange(9000, 99_000), i // 500 % 168
            file.write(f"{now} 17\n" if torn else f"{now} {4000 + i % 16} {offset} 131072 {took} case_{case:05d}_x.npy\n")


def _line_by_line(path: Path) -> int:
    """Prepare the file in the artifact's style, a line at a time: split, check, shift the clock, write text; return the rows."""
    rows = 0
    with path.open(encoding="ascii") as lines, path.with_suffix(".prepared").open("w", encoding="ascii") as prepared:
        for line in lines:
            fields = line.split()
            if len(fields) < 5 or not fields[0].isdigit():
                continue
            end, pid, offset, result, took = (int(field) for field in fields[:5])
            if result >= 2**63:
                result -= 2**64
            moment = datetime.fromtimestamp(1.6e9 + (end - took) / 1e9, UTC).isoformat()
            prepared.write(f"{moment},{pid},{offset},{result},{took},{fields[5] if len(fields) > 5 else ''}\n")
            rows += 1
    return rows


def _import(scratch: Path, lines: int) -> Iterator[Figure]:
    source = scratch / "artifact"
    source.mkdir()
    _artifact_lines(source / "trace_read.out", lines)
    counted = []

    def ours() -> float:
        return _timed("import", source, "-o", scratch / "artifact.trace", "--force")[0]

    def plainly() -> float:
        begin = time.perf_counter()
        counted.append(_line_by_line(source / "trace_read.out"))
        return time.perf_counter() - begin

    fast, slow = interleaved(3, ours, plainly)
    from tracing_tools.trace.reader import Trace

    same = Trace(scratch / "artifact.trace").manifest.events == counted[0]
    yield Figure(
        f"import of {lines / 1e6:g} million artifact lines: line-by-line seconds over ours", median_ratio(slow, fast), 50,
        at_most=False,
        detail=f"{min(fast):.2f} s, line by line {min(slow):.1f} s; {'the same' if same else 'OTHER'} rows",
    )  # fmt: skip


def _dask(scratch: Path, epochs: int) -> Iterator[Figure]:
    trace = scratch / "hundred.trace"
    write_loader_trace(trace, seed=2, epochs=epochs)
    answers, seconds = [], []
    for more in ([], ["--dask"]):
        begin = time.perf_counter()
        command = [sys.executable, "-m", "iotwin.main", "stats", str(trace), "--by", "file", "--json", *more]
        done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        seconds.append(time.perf_counter() - begin)
        answers.append(json.loads(done.stdout)["rows"])
    detail = f"{seconds[0]:.1f} s in one process; {'equal' if answers[0] == answers[1] else 'OTHER'} answers"
    yield Figure(f"stats --by file --dask of {epochs} million events: s", seconds[1], detail=detail)
    yield Figure("stats --dask: answers that differ from one process's", float(answers[0] != answers[1]), 0)


def measure(epochs: int = 10, lines: int = 5_000_000, dask_epochs: int = 100) -> Iterator[Figure]:
    """Yield the figures; a trace has a million events an epoch."""
    events = f"{epochs} million"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_loader_trace(scratch / "large.trace", seed=1, epochs=epochs)
        yield from _pictures(scratch / "large.trace", scratch, events)
        if shutil.which("chromium") and shutil.which("chromedriver"):
            yield from _browser(scratch / "r.html", events)
        yield from _import(scratch, lines)
        yield from _dask(scratch, dask_epochs)


if __name__ == "__main__":
    for figure in measure(*(int(argument) for argument in sys.argv[1:])):
        print(figure.line(), flush=True)
