"""Pictures, report, import and statistics of large traces: time, memory, and the report's page in a real browser."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.figures.statistics import PERCENTILES
from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.line_by_line import Run, bare, prepare
from tests.perf.perf_tracesim import write_loader_trace
from tests.perf.records import record_figures

_MIB = 1 << 20
_PIDS = range(4000, 4016)
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
        [sys.executable, "-m", "iotwin", *map(str, arguments), "--quiet"], env={**os.environ, "PYTHONPATH": str(ROOT)}
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


def _artifact(place: Path, lines: int) -> Run:
    """Write a recording as the artifact's scripts do: reads of sixteen processes, the clock's alignment and the job's log."""
    place.mkdir()
    rng = random.Random(1)
    boot, unix = 10**12, 1_600_000_000 * 10**9
    with (place / "trace_read.out").open("w", encoding="ascii") as file:
        file.write("Attaching 2 probes...\nTIMESTAMP PID OFFSET RET LAT FILENAME\n")
        now = boot
        for i in range(lines):
            now += rng.randrange(1000, 100_000)
            pid, offset, took = _PIDS[i % len(_PIDS)], i % 500 * 131072, rng.randrange(9000, 99_000)
            result = 2**64 - 11 if i % 5000 == 77 else 131072
            name = "" if i % 1000 == 500 else f" case_{i // 500 % 168:05d}_x.npy"
            torn = i % 100_000 == 99_999
            file.write(f"{now} 17\n" if torn else f"{now} {pid} {offset} {result} {took}{name}\n")
    # Halfway between two ticks a second begins, at which the importer places it.
    ticks = [(boot + i * 10**7 + 5 * 10**6, time.strftime("%H:%M:%S", time.gmtime(unix // 10**9 + i // 100))) for i in range(300)]
    (place / "trace_time_align.out").write_text("".join(f"{at} {text}\n" for at, text in ticks))
    keys = ("init_start", "init_stop", "epoch_start", "epoch_stop")
    seconds = (1, 2, 2, (now - boot) / 1e9 - 1)
    marks = [(key, unix + round(1e9 * second)) for key, second in zip(keys, seconds, strict=True)]
    log = [json.dumps({"key": key, "time_ms": at // 10**6, "metadata": {"epoch_num": 1}}) for key, at in marks]
    (place / "unet3d.log").write_text("".join(f":::MLLOG {line}\n" for line in log))
    return Run(unix - boot, marks[0][1], [(marks[0][1], "init"), (marks[2][1], "epoch")], list(_PIDS))


def _rows_of_trace(path: Path) -> NDArray[np.int64]:
    """Start, duration, pid, offset and result of every event, sorted; shape (5, n)."""
    names = ["start_ns", "duration_ns", "pid", "offset", "result"]
    batches = [np.stack([batch[name].to_numpy().astype(np.int64) for name in names]) for batch in Trace(path).events(names)]
    return _sorted(np.concatenate(batches, axis=1))


def _rows_of_text(paths: list[Path], run: Run) -> NDArray[np.int64]:
    """The same of the rival's intervals."""
    rows = []
    for path in paths:
        begin, end, pid, offset, result = np.loadtxt(path, usecols=(0, 1, 3, 4, 5), unpack=True)
        start_ns = np.rint(begin * 1e9)
        columns = (start_ns + (run.init_ns - run.offset_ns), np.rint(end * 1e9) - start_ns, pid, offset, result)
        rows.append(np.stack([column.astype(np.int64) for column in columns]))
    return _sorted(np.concatenate(rows, axis=1))


def _sorted(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[:, np.lexsort(rows[::-1])]


def _import(scratch: Path, lines: int) -> Iterator[Figure]:
    source, trace = scratch / "artifact", scratch / "artifact.trace"
    run = _artifact(source, lines)
    text = source / "trace_read.out"
    prepared: list[list[Path]] = []

    def ours() -> float:
        return _timed("import", source, "-o", trace, "--force")[0]

    def timed(work: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    fast, one_pass, whole = interleaved(
        3, ours, lambda: timed(lambda: bare(text, run.offset_ns)), lambda: timed(lambda: prepared.append(prepare(text, run)))
    )
    same = _rows_of_trace(trace).tobytes() == _rows_of_text(prepared[0], run).tobytes()
    name = f"import of {lines / 1e6:g} million artifact lines"
    yield Figure(
        f"{name}: line-by-line preparation's seconds over ours",
        median_ratio(whole, fast),
        50,
        at_most=False,
        detail=f"{min(fast):.2f} s, line by line {min(whole):.1f} s; {'the same' if same else 'OTHER'} rows",
    )
    bare_ratio = median_ratio(one_pass, fast)
    yield Figure(f"{name}: seconds of one line-by-line pass over ours", bare_ratio, detail=f"{min(one_pass):.1f} s")


def _tree_peak_mib(process: subprocess.Popen[str]) -> float:
    """Wait for the process; return the most MiB that it and all its descendants held at once, in private and shared pages."""
    most = 0.0
    while process.poll() is None:
        held, todo = 0.0, [process.pid]
        while todo:
            pid = todo.pop()
            try:
                held += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB
                for thread in Path(f"/proc/{pid}/task").iterdir():  # a child belongs to the thread that started it
                    todo += [int(child) for child in (thread / "children").read_text().split()]
            except OSError:
                continue  # it has just ended
        most = max(most, held)
        time.sleep(0.05)
    return most


def run_with_peak(*arguments: str | Path) -> tuple[str, float, float]:
    """Run the command line; return its output, its seconds, and the peak of all its processes together in MiB."""
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "iotwin", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=output, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True)
        peak = _tree_peak_mib(process)
        seconds = time.perf_counter() - begin
        assert process.returncode == 0, arguments
        output.seek(0)
        return output.read(), seconds, peak


def _dask(scratch: Path, epochs: int) -> Iterator[Figure]:
    trace = scratch / "hundred.trace"
    write_loader_trace(trace, seed=2, epochs=epochs)
    page = scratch / "hundred.html"
    commands: dict[str, list[str | Path]] = {
        "stats --by file": ["stats", trace, "--by", "file", "--json"],
        "compare with itself": ["compare", trace, trace, "--json"],
        "report": ["report", trace, "-o", page, "--json"],
    }
    for name, command in commands.items():
        found = []
        for more in ([], ["--dask"]):
            output, seconds, peak = run_with_peak(*command, *more, "--quiet")
            found.append((output, page.read_bytes() if page.exists() else b"", seconds, peak))
        (*alone, alone_s, alone_mib), (*together, seconds, peak) = found
        same = "equal answers" if alone == together else "OTHER answers"
        detail = f"largest sum of all its processes {peak:.0f} MiB; without --dask {alone_s:.1f} s, {alone_mib:.0f} MiB; {same}"
        yield Figure(f"{name} --dask of {epochs} million events: s", seconds, detail=detail)
        yield Figure(f"{name} --dask: answers that differ from those without", float(alone != together), 0)


def _memory(trace: Path, page: Path, events: str) -> Iterator[Figure]:
    """Peak memory of all processes of a command under the least --memory, against 328 MiB, and what that costs."""
    commands: dict[str, list[str | Path]] = {
        "info": ["info", trace, "--json"],
        "stats --by file": ["stats", trace, "--by", "file", "--json"],
        "compare with itself": ["compare", trace, trace, "--json"],
        "report": ["report", trace, "-o", page, "--json"],
    }
    for name, command in commands.items():
        found = []
        for limit in ("1TiB", "128MiB"):
            before = sum(os.times()[2:4])
            output, _, peak = run_with_peak(*command, "--memory", limit, "--quiet")
            answer = json.loads(output) | {"page": page.read_bytes() if page.exists() else b"", "percentile_error": 0}
            for row in answer.get("rows", []):
                row.update(dict.fromkeys(PERCENTILES))  # within their stated error, which a test checks
            found.append((answer, sum(os.times()[2:4]) - before, peak))
        (plain, plain_s, plain_mib), (answer, seconds, peak) = found
        detail = f"{seconds:.1f} CPU s; with all memory {plain_s:.1f} CPU s, {plain_mib:.0f} MiB"
        yield Figure(f"{name} --memory 128MiB of {events} events: peak MiB of all processes", peak, 328, detail=detail)
        yield Figure(f"{name} --memory 128MiB of {events} events: answers that differ", float(plain != answer), 0)


def measure(epochs: int = 10, lines: int = 5_000_000, dask_epochs: int = 100) -> Iterator[Figure]:
    """Yield the figures; a trace has a million events an epoch."""
    events = f"{epochs} million"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_loader_trace(scratch / "large.trace", seed=1, epochs=epochs)
        yield from _pictures(scratch / "large.trace", scratch, events)
        if shutil.which("chromium") and shutil.which("chromedriver"):
            yield from _browser(scratch / "r.html", events)
        yield from _memory(scratch / "large.trace", scratch / "m.html", events)
        yield from _import(scratch, lines)
        yield from _dask(scratch, dask_epochs)


if __name__ == "__main__":
    record_figures("visuals", measure(*(int(argument) for argument in sys.argv[1:])))
