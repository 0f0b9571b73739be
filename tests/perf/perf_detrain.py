"""DETrain: resumed runs compared bit for bit, what instrumenting and determinism cost, and what a resumed run reads.

python -m tests.perf.perf_detrain [PART ...] [SCRIPT ...]: only these parts (a key of PARTS), for these scripts of
tests/workloads/detrain/zoo only.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from iotwin.trace_store.reader import Trace
from tests.conftest import ROOT
from tests.perf.detrain_scripts import EMPTY_BODY, LOADED_BODY, RACING_ADDS, RESTORE_TIMER, SAVE, indented, replaced
from tests.perf.figures import Figure, interleaved, median_ratio
from tests.perf.records import record_figures
from tests.workloads.detrain.script_server import ScriptServer
from tests.workloads.detrain.test_ranks import SCRIPT
from tests.workloads.detrain.test_zoo import TENSORFLOW, TORCH, command

_ZOO = ROOT / "tests" / "workloads" / "detrain" / "zoo"
_IOTWIN = (sys.executable, "-m", "iotwin")
_DETRAIN = (sys.executable, "-u", "-m", "iotwin.workloads.detrain")
_WORKERS = "num_workers=cfg.workers"  # in augmented.py
_LOADERS = {  # options of its loader, and the numbers of its worker processes
    "persistent workers": ("persistent_workers=True", "1,4"),
    "workers by spawn": ("multiprocessing_context='spawn'", "1"),
    "prefetch_factor 1": ("prefetch_factor=1", "1,4"),
    "prefetch_factor 4": ("prefetch_factor=4", "1,4"),
}
_RANKS = {  # options of verify, and arguments of the script of tests/workloads/detrain/test_ranks.py
    "restore": ([], []),
    "replay-data": (["--replay", "replay-data"], []),
    "fully_shard": ([], ["--sharded"]),
}
_CONTROLS = {  # by part of the state: a script that needs it, its worker processes, and what differs first without the part
    "rng": ("dropout_mlp", "0", "rng"),
    "loader": ("cnn", "0", "indices"),
    "scaler": ("amp", "0", "optimizer"),
    "threads": ("cnn", "0", "threads"),
    "workers": ("augmented", "1", "input"),
}
_ROUNDS, _ROUNDS_OF_LONG = 5, 3
_MOST_US, _MOST_SHARE = 20.0, 0.01
# Epochs of a run whose epochs are timed: some seconds, so that medians are steady.
_EPOCHS = {"tf_music": 10, "tf_pipeline": 10}
_SEEDS = {
    "cnn": "torch.manual_seed(args.seed)",
    "dropout_mlp": "torch.manual_seed(args.seed)",
    "augmented": "seed_everything(cfg.seed)",
}
_LONG_EPOCHS = {  # what gives a script epochs of a second and more, by replacing its text
    "cnn": ("make_images(88, 0)", "make_images(4000, 0)"),
    "vit": ("Patches(96, 0)", "Patches(2400, 0)"),
}

_AFTER_EPOCH = {  # a line of the script at the end of an epoch, and what holds its model and optimizer
    "cnn": ("        scheduler.step()\n", ""),
    "vit": ("            self.history.append((loss, acc))\n", "self."),
}
_SAVES = {name: (line, f"{line}{indented(SAVE.format(of=of), line)}") for name, (line, of) in _AFTER_EPOCH.items()}


def measure(words: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the parts and for the scripts that `words` name, by default all."""
    parts = [word for word in words if word in PARTS] or list(PARTS)
    names = [word for word in words if word not in PARTS] or [*TORCH, *TENSORFLOW]
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
            yield from PARTS[part](Path(folder).resolve(), names)


# Resumed runs


def _resumes(folder: Path, names: Sequence[str]) -> Iterator[Figure]:
    """Every script of the zoo, resumed at each of its batches with three numbers of workers."""
    for name in names:
        path, *arguments = command(name, folder)
        yield _verified(name, folder / f"{name}_check", Path(path), arguments, "0,1,4")


def _loaders(folder: Path, names: Sequence[str]) -> Iterator[Figure]:
    """The script that augments, with other options of its loader. `names`: keys of _LOADERS, by default all."""
    for label in [name for name in _LOADERS if name in names] or _LOADERS:
        options, workers = _LOADERS[label]
        own = folder / label.replace(" ", "_")
        script = replaced(_ZOO / "augmented.py", _WORKERS, f"num_workers=cfg.workers or 1, {options}", own)
        yield _verified(f"augmented, {label}", folder / f"{script.parent.name}_check", script, [], workers)


def _ranks(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """The script of several ranks, whose gradients are summed, or whose parameters are sharded."""
    (script := folder / "train.py").write_text(SCRIPT)
    for label, (options, arguments) in _RANKS.items():
        output = folder / label.replace(" ", "_")
        yield _verified(f"3 ranks, {label}", output, script, ["--items", "24", *arguments], "1,4", ["--ranks", "3", *options])


def _controls(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """Resumed runs that lack a part of the state: each must differ, first in what the part decides."""
    for drop, (name, workers, wanted) in _CONTROLS.items():
        path, *arguments = command(name, folder)
        options = ["--drop", drop, "--reruns", "1", "--resume-at", "0:2,1:1,1:2", "--workers", workers]
        resumes = _verification(folder / f"without_{drop}", Path(path), arguments, options)["resumes"]
        named = [each for each in resumes if not each["equal"] and _kind(each) == wanted]
        detail = f"{name}; the first difference must be in {wanted}{_worst([each for each in resumes if each not in named])}"
        yield Figure(f"detrain, without {drop}: caught and named of {len(resumes)}", len(named), len(resumes), False, detail)


def _kind(resume: dict[str, Any]) -> str:
    found = resume["first_difference"]
    return found["what"] if found else "".join(each.partition(":")[0] for each in resume["differs_from_saved"])


def _verified(label: str, output: Path, script: Path, arguments: Sequence[str], workers: str, more: Sequence[str] = ()) -> Figure:
    document = _verification(output, script, arguments, ["--workers", workers, "--resume-at", "all", *more])
    return _resumed_figure(label, workers, document)


def _verification(output: Path, script: Path, arguments: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    words = [*_IOTWIN, "detrain", "verify", str(script), "-o", str(output), *options, "--json", "--", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # its exit status is 1 if runs differ
    assert done.stdout.startswith("{"), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _resumed_figure(label: str, workers: str, document: dict[str, Any]) -> Figure:
    resumes, reruns = document["resumes"], document["reruns"]
    replays = ", ".join(f"{count} by {replay}" for replay, count in Counter(each["replay"] for each in resumes).items())
    detail = (
        f"workers {workers}; {document['steps']} batches; {sum(each['equal'] for each in reruns)} of {len(reruns)} reruns equal; "
        f"{replays}{_worst(resumes)}"
    )
    if not all(each["equal"] for each in reruns):
        detail += f"; rerun: {_difference(next(each for each in reruns if not each['equal']))}"
    equal = sum(each["equal"] for each in resumes)
    return Figure(f"detrain, {label}: of {len(resumes)} resumed runs, equal", equal, len(resumes), False, detail)


def _worst(resumes: Sequence[dict[str, Any]]) -> str:
    wrong = [each for each in resumes if not each["equal"]]
    return f"; at {wrong[0]['epoch']}:{wrong[0]['batch']}: {_difference(wrong[0])}" if wrong else ""


def _difference(run: dict[str, Any]) -> str:
    found = run["first_difference"]
    return run["error"] or (f"first in {found['what']} {found['name']}".strip() if found else "elsewhere")


# Time of a batch


def _instrumentation(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """Batches of an instrumented script that saves nothing, compared with the bare script."""
    added = {}
    for label, text in {"empty body": EMPTY_BODY, "loader and empty body": LOADED_BODY}.items():
        script = folder / f"{label.replace(' ', '_')}.py"
        script.write_text(text)
        bare, ours = interleaved(
            _ROUNDS, *(lambda words=[*words, str(script)]: _printed_us(words) for words in _bare_and_ours(folder))
        )
        added[label] = statistics.median(ours) - statistics.median(bare)
        detail = f"10 epochs; bare {statistics.median(bare):.3g} us, instrumented {statistics.median(ours):.3g} us"
        yield Figure(f"detrain, {label}: us added to a batch", added[label], _MOST_US, True, detail)
    us = added["loader and empty body"]
    for name, (old, new) in _LONG_EPOCHS.items():
        script = replaced(_ZOO / f"{name}.py", old, new, folder / f"{name}_long")
        bare = [_epoch_of([sys.executable, "-u", str(script), "--epochs", "4"])() for _ in range(_ROUNDS)]
        of_batch = statistics.median(bare) / int(new.split("(")[1].split(",")[0]) * 16 * 1e6
        # Not the difference of whole runs: it varies by several per cent, whichever of both is instrumented.
        detail = (
            f"{us:.3g} us that a loader's batch takes longer, of {of_batch:.4g} us of processor time of a bare batch; "
            f"bare runs differ by {max(bare) / min(bare) - 1:.1%}"
        )
        yield Figure(
            f"detrain, {name}: share of processor time that instrumentation adds", us / of_batch, _MOST_SHARE, True, detail
        )


def _bare_and_ours(folder: Path) -> tuple[tuple[str, ...], ...]:
    return (sys.executable, "-u"), (*_DETRAIN, "-o", str(folder / "run"), "--resume", "never")


def _printed_us(words: Sequence[str]) -> float:
    """Run a script that prints microseconds per batch, a line an epoch; return their median."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return statistics.median(map(float, done.stdout.split()))


def _epoch_of(words: Sequence[str]) -> Callable[[], float]:
    """Run a script that prints a line at the end of each epoch; return the processor time of the median epoch but the first.

    It is that of the main thread, which does all the work here: other programs on the machine change it less than wall time.
    """

    def run() -> float:
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            found = _median_epoch(process.pid, process.stdout)
        assert process.returncode == 0, words
        return found

    return run


def _median_epoch(process: int, lines: Iterable[str]) -> float:
    """Return the processor seconds between two of the lines that a process prints, their median."""
    spent = Path(f"/proc/{process}/schedstat")
    ends = [int(spent.read_text().split()[0]) / 1e9 for _ in lines]
    return statistics.median(end - begin for begin, end in pairwise(ends))


def _strict(folder: Path, names: Sequence[str]) -> Iterator[Figure]:
    """Epochs with --determinism strict, compared with those without."""
    os.environ["PYTHONUNBUFFERED"] = "1"  # the end of an epoch is when its line arrives
    with ScriptServer(folder) as server:
        for name in names:
            arguments = command(name, folder, "--epochs", str(_EPOCHS.get(name, 20)))
            runs = [
                lambda words=["--determinism", profile, *arguments]: _epoch_in(server, words) for profile in ("off", "strict")
            ]
            off, strict = interleaved(_ROUNDS_OF_LONG, *runs)
            ms = f"{statistics.median(off) * 1e3:.4g} ms off, {statistics.median(strict) * 1e3:.4g} ms strict"
            detail = f"processor time of an epoch {ms}; median of {_ROUNDS_OF_LONG}"
            share = median_ratio(strict, off)
            yield Figure(f"detrain, {name}: processor time with strict determinism over off", share, None, True, detail)


def _epoch_in(server: ScriptServer, words: Sequence[str]) -> float:
    """As `_epoch_of`, in a process that has PyTorch already."""
    (output := server.folder / "out.txt").unlink(missing_ok=True)
    os.mkfifo(output)
    process = server.start(words)
    with output.open() as lines:
        found = _median_epoch(process, lines)
    output.unlink()
    output.touch()
    assert server.wait().status == 0, words
    return found


def _spread(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """The last loss of scripts that seed nothing or add in parallel, in runs without determinism and with strict."""
    racing = folder / "racing_adds.py"
    racing.write_text(RACING_ADDS)
    scripts = {name: replaced(_ZOO / f"{name}.py", seeds, "pass", folder / name) for name, seeds in _SEEDS.items()}
    for name, script in {**{f"{name} without seeds": path for name, path in scripts.items()}, "parallel adds": racing}.items():
        for profile in ("off", "strict"):
            losses = [_last_loss(script, profile, folder) for _ in range(_ROUNDS)]
            spread = (max(losses) - min(losses)) / abs(statistics.fmean(losses))
            bound = 0.0 if profile == "strict" else None
            detail = f"{len(set(losses))} different last losses in {_ROUNDS} runs"
            yield Figure(f"detrain, {name}, {profile}: relative spread of the last loss", spread, bound, True, detail)


def _last_loss(script: Path, profile: str, folder: Path) -> float:
    (log := folder / "steps").unlink(missing_ok=True)
    words = [*_DETRAIN, "--determinism", profile, "--steps-log", str(log), str(script)]
    subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    return float.fromhex(json.loads(log.read_text().splitlines()[-1])["loss"][-1])


# What a resumed run reads, and how long it takes


def _reads(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """The files that a resumed run opens, by our tracer, compared with the samples of its steps."""
    path, *arguments = command("gnn", folder)
    run = ["detrain", "run", path, "-o", str(folder / "run"), "--steps-log", str(folder / "steps")]
    words = [*_IOTWIN, *run, "--resume", "never", "--at", "1:2", "--", *arguments]
    subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    steps = _steps(folder / "steps")
    first = next(index for index, step in enumerate(steps) if (step["epoch"], step["batch"]) == (1, 2))
    skipped, later = _samples(steps[:first]), _samples(steps[first:])
    for replay, wanted in (("restore", Counter()), ("replay-data", skipped)):
        (folder / "steps").unlink()
        trace = folder / f"{replay}.trace"
        words = ["trace", "-o", str(trace), "--", *_IOTWIN, *run, "--replay", replay, "--", *arguments]
        subprocess.run([*_IOTWIN, *words], cwd=ROOT, capture_output=True, check=True)
        assert _samples(_steps(folder / "steps")) == later
        read = _opened(trace)
        before = Counter(read) - later
        wrong = (before - wanted) + (wanted - before) + (later - Counter(read))
        detail = f"gnn resumed at 1:2, {sum(skipped.values())} samples before it; {len(read)} files opened"
        yield Figure(f"detrain, {replay}: samples before the checkpoint that are read", sum(before.values()),
                     sum(wanted.values()), True, detail)  # fmt: skip
        yield Figure(f"detrain, {replay}: samples read wrongly or not at all", sum(wrong.values()), 0, True, detail)


def _steps(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def _samples(steps: Sequence[dict[str, Any]]) -> "Counter[int]":
    return Counter(index for step in steps for index in step["indices"])


def _opened(folder: Path) -> list[int]:
    """Return the samples whose files a traced run opened to read, in order."""
    trace = Trace(folder)
    opens = trace.events_frame(["op", "file_id", "result"])
    opens = opens[opens["op"].isin(["open", "openat", "openat2"]) & (opens["result"] >= 0)]
    paths = trace.files().set_index("file_id")["path"]
    names = (re.fullmatch(r".*/graph_(\d+)\.npz", str(paths[file])) for file in opens["file_id"])
    return [int(name[1]) for name in names if name]


def _restore_time(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """A resumed run from its epoch's begin to its first step, compared with a new one that saves at the same batches."""
    timer = folder / "timer.py"
    timer.write_text(RESTORE_TIMER)
    for name in _LONG_EPOCHS:
        path, *arguments = command(name, folder)
        output = ["-o", str(folder / name), "--at", "1:2"]
        subprocess.run([*_DETRAIN, *output, path, *arguments], cwd=ROOT, capture_output=True, check=True)
        words = [sys.executable, str(timer), *output]
        timed = [
            _timed([*words, "--resume", resume, path, *arguments]) for _ in range(_ROUNDS_OF_LONG) for resume in ("never", "auto")
        ]
        new, resumed = timed[::2], timed[1::2]
        load, epoch = _median(resumed, "read", "put"), _median(new, "epoch")
        restored = _median(resumed, "read", "epoch")
        detail = (
            f"processor time: load {load * 1e3:.3g} ms; from the epoch's begin to its first step: new run {epoch * 1e3:.3g} ms, "
            f"resumed at 1:2, with reading the checkpoint, {restored * 1e3:.3g} ms"
        )
        ratio = restored / (load + epoch)
        yield Figure(f"detrain, {name}: time of restore over load and an epoch's start", ratio, 1.0, True, detail)


def _median(timed: Sequence[dict[str, float]], *keys: str) -> float:
    return statistics.median(sum(each[key] for key in keys) for each in timed)


def _timed(words: Sequence[str]) -> dict[str, float]:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
    return seconds


def _saving(folder: Path, _: Sequence[str]) -> Iterator[Figure]:
    """A checkpoint an epoch, by `torch.save` in the script and by iotwin: the time of saving over that of all else."""
    for name, (old, new) in _LONG_EPOCHS.items():
        script = replaced(_ZOO / f"{name}.py", old, new, folder / f"{name}_long")
        saving = replaced(script, *_SAVES[name], folder / f"{name}_saves")
        output = folder / name
        by_torch = [sys.executable, "-u", str(saving), "--epochs", "5"]
        by_us = [*_DETRAIN, "-o", str(output), "--resume", "never", "--keep", "2", "--every", "1epochs"]
        shares: dict[str, list[float]] = {"torch.save": [], "iotwin": []}
        for _round in range(_ROUNDS_OF_LONG):
            seconds, each = _wall(by_torch)
            saved = statistics.fmean(each) * 4
            shares["torch.save"].append(saved / (seconds - saved))
            seconds = _wall([*by_us, str(script), "--epochs", "5"])[0]
            run = json.loads((output / "run.json").read_text())
            assert len(run["checkpoints"]) == 4
            saved = run["overhead_s_per_batch"] * run["steps"]
            shares["iotwin"].append(saved / (seconds - saved))
        for label, found in shares.items():
            median = statistics.median(found)
            detail = f"4 epochs take {seconds:.3g} s; median of {_ROUNDS_OF_LONG}, {min(found):.3g} to {max(found):.3g}"
            if label == "iotwin":
                detail += "; durable, with everything that resuming needs; Flor's paper claims 0.0147 for its own jobs"
            yield Figure(
                f"detrain, {name}: share of time that {label} adds with a checkpoint an epoch", median, None, True, detail
            )


def _wall(words: Sequence[str]) -> tuple[float, list[float]]:
    """Run a script that prints a line an epoch. Return the seconds from the first to the last, and those of its saves."""
    ends, saved = [], []
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("saved "):
                saved.append(float(line.split()[1]))
            else:
                ends.append(time.perf_counter())
    assert process.returncode == 0, words
    return ends[-1] - ends[0], saved


PARTS: dict[str, Callable[[Path, Sequence[str]], Iterator[Figure]]] = {
    "resumes": _resumes, "loaders": _loaders, "ranks": _ranks, "controls": _controls, "instrumentation": _instrumentation,
    "saving": _saving, "reads": _reads, "restore": _restore_time, "spread": _spread, "strict": _strict,
}  # fmt: skip

if __name__ == "__main__":
    record_figures("detrain", measure(sys.argv[1:]))
