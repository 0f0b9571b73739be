"""From a trace to a proven twin: fit it, make its data set, run it traced, compare, correct, until it gets no better."""

import json
import mmap
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from common.files import claim_directory, write_json, write_whole
from common.progress import note
from common.units import format_size
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache import cache_in_pages
from iotwin.loops.traced import run_traced
from iotwin.own_command import own_command
from tracing_tools.trace.reader import Trace

if TYPE_CHECKING:
    from benchmark.config import Config
    from benchmark.fit import Kind
    from benchmark.fit.twin_parts import Fitted

TWIN, RECIPE, SUMMARY, RECORDING = "twin.yaml", "dataset.csv", "summary.json", "twin.recording"
OUTPUT, _DATA = "output", "data"
_LEAST_VOLUME = 0.90  # score of the calls and bytes below which the fit is wrong, which no correction of times can mend
_LEAST_GAIN = 0.001  # in the overall score: a round that gains less is the last


def make_twin(paths: Sequence[Path], directory: Path, rounds: int, force: bool, kind: "Kind" = "auto") -> dict[str, Any]:
    """Make the twin of the job traced at `paths[0]` in `directory` and return its record (also there as summary.json).

    Further paths are reruns of the job: they give the noise floor, at which there is nothing left to correct, and are what
    the finished twin is held against, since the fit has not seen them. Every round keeps its YAML, trace and similarity.
    """
    from benchmark.config.recording import write_recording
    from benchmark.fit import fit
    from benchmark.fit.coverage import describe_coverage

    traces = [Trace(path) for path in paths]
    fitted = fit(traces[0], kind)
    _prepare(directory, force)
    note(fitted.evidence["kind"])
    note(describe_coverage(fitted.coverage))
    if fitted.recording is not None and fitted.config.twin.recorded is not None:
        write_recording(fitted.recording, directory / RECORDING)
        fitted.config.twin.recorded.file = str(directory.absolute() / RECORDING)
    _make_data(fitted, directory)
    loop = _Rounds(traces, fitted, directory)
    mapped = data_files(directory) if "page_fault" in traces[0].manifest.counts else []
    with kept_cached(mapped):
        for number in range(1, rounds + 1):
            if not loop.run(number):
                break
    return loop.finish()


def _prepare(directory: Path, force: bool) -> None:
    if claim_directory(directory, "twin", (directory / RECIPE).exists, force):
        for path in [*directory.glob("round-*"), directory / _DATA, directory / OUTPUT]:
            shutil.rmtree(path, ignore_errors=True)
        for name in (TWIN, RECIPE, SUMMARY, RECORDING):
            (directory / name).unlink(missing_ok=True)


def _make_data(fitted: "Fitted", directory: Path) -> None:
    from benchmark.config import dump
    from datagen.datasets.recorded import write_recipe

    start_up = [(_beside(name, index), size) for index, (name, size) in enumerate(fitted.start_up.files)]
    fitted.config.twin.startup_files = [name for name, _ in start_up]
    write_recipe(directory / RECIPE, sorted(dict([*fitted.files, *start_up]).items()))
    dump(fitted.config, directory / TWIN)  # as fitted, which tells how it reads; until the best round's takes its place
    generate_data(directory)


def _beside(name: str, number: int) -> str:
    """The name within the stand-in of a file that the job starts from: its own, or of one that lies elsewhere a new one.

    With its folder's, as that of a checkpoint tells what it is.
    """
    path = PurePosixPath(name)
    return f"start-up/{number}/{path.parent.name or 'root'}/{path.name}" if path.is_absolute() else name


def generate_data(directory: Path) -> None:
    """Write the data set that the recipe in `directory` lists, unless it is there already.

    Mapped data are found in the page cache as the job found its own.
    """
    from datagen.datasets.recorded import read_recipe
    from datagen.generate import generate

    layout = read_recipe(directory / RECIPE)
    note(f"data set: {len(layout.files)} files, {format_size(sum(size for _, size in layout.files))}")
    if not layout.files:  # a job that only writes
        (directory / _DATA).mkdir(exist_ok=True)
        return
    generate(layout, directory / _DATA, samples=len(layout.files))
    if _faults_around(directory):
        for name, _ in layout.files:
            cache_in_pages(directory / _DATA / name)


def _faults_around(directory: Path) -> bool:
    """Whether the twin in `directory` maps its data, and most faults brought the job several pages: it found them read, not new.

    Of large folios, in which data lie that were just written, a fault tells one page.
    """
    from benchmark.config import load
    from benchmark.config.listed_reads import parse
    from benchmark.config.recording import Op, read_recording

    if (recording := directory / RECORDING).exists():
        columns = read_recording(recording).columns
        sizes = columns["size"][columns["op"] == Op.TOUCH].tolist()
    elif (twin := directory / TWIN).exists() and (config := load(twin)).twin.reader.mmap:
        sizes = [read.size_bytes for reads in config.twin.train_reads or [] for read in parse(reads)]
    else:
        return False
    return bool(sizes) and statistics.median(sizes) > mmap.PAGESIZE


def data_files(directory: Path) -> list[Path]:
    """Return the files of the twin's data set; they are made if they are not there."""
    from datagen.datasets.recorded import read_recipe

    generate_data(directory)
    return [directory / _DATA / name for name, _ in read_recipe(directory / RECIPE).files]


def confine(config: "Config", directory: Path) -> None:
    """Have the workload read and write below `directory` and nowhere else."""
    config.dataset.data_folder = str(directory / _DATA)
    config.checkpoint.checkpoint_folder = config.output.folder = str(directory / OUTPUT)


class _Rounds:
    """The rounds so far, each in a directory of its own, and the best of them."""

    def __init__(self, traces: list[Trace], fitted: "Fitted", directory: Path) -> None:
        self._traces, self._wanted, self._directory = traces, fitted.config, directory
        self._config, self._kind, self._coverage = fitted.config, fitted.evidence["kind"], fitted.coverage
        self._records: list[dict[str, Any]] = []
        self._best = -1
        self._stopped: str | None = None
        confine(self._config, directory.absolute())

    def run(self, number: int) -> bool:
        """Run and score round `number` and return whether another one may do better."""
        from benchmark.config import dump
        from benchmark.fit import structured
        from benchmark.fit.calibrate import corrected
        from benchmark.fit.look import look
        from tracesim import compare
        from tracesim.sentences import with_names

        note(f"round {number}: running the twin")
        folder = self._directory / f"round-{number}"
        folder.mkdir()
        dump(self._config, folder / TWIN)
        shutil.rmtree(self._directory / OUTPUT, ignore_errors=True)
        real = self._traces[0]
        command = own_command("emulate", folder / TWIN)
        run_traced(
            command,
            folder / "twin.trace",
            real.manifest.workload or "twin",
            _backend_like(real),
            page_faults="page_fault" in real.manifest.counts,
            tells_events=False,
        )
        run = Trace(folder / "twin.trace")
        similarity = compare(real, run, repeats=self._traces[1:]).to_document()
        write_json(folder / "similarity.json", similarity)
        record = {"round": number, **{key: similarity[key] for key in ("overall", "dimensions", "verdict")}}
        self._records.append(record | {"verdict": with_names(record["verdict"], "the job", "its twin")})
        note(f"round {number}: {_score(similarity['overall'])}")
        best = self._records[self._best]["overall"] if self._best >= 0 else None
        overall = similarity["overall"]
        if overall is None or (best is not None and overall < best + _LEAST_GAIN):
            return False
        self._best = len(self._records) - 1
        volume = similarity["dimensions"]["volume"]
        if volume < _LEAST_VOLUME:
            self._stopped = (
                f"the twin's calls and bytes are not the job's (volume scores {volume:.2f}): the fit is wrong, "
                f"and further rounds would only correct times; see what differs: iotwin compare {real.path} {run.path}"
            )
            note(self._stopped)
            return False
        floor = similarity["noise_floor"]
        if floor is not None and overall >= floor:
            return False
        if self._config.twin.recorded is not None:
            return False  # its times are the job's own: there is nothing to correct
        self._config = corrected(self._config, self._wanted, structured(look(run)).config)
        return True

    def finish(self) -> dict[str, Any]:
        """Keep the best round's YAML as the twin and return the record of all rounds."""
        from tracesim import compare
        from tracesim.sentences import with_names

        best = self._records[max(self._best, 0)]
        folder = self._directory / f"round-{best['round']}"
        write_whole(self._directory / TWIN, (folder / TWIN).read_bytes())
        held_out = [
            compare(rerun, Trace(folder / "twin.trace"), [other for other in self._traces if other is not rerun]).to_document()
            for rerun in self._traces[1:]
        ]
        similarity = json.loads((folder / "similarity.json").read_text())
        document = {
            "directory": str(self._directory), "twin": str(self._directory / TWIN), "best_round": best["round"],
            "overall": best["overall"], "verdict": best["verdict"],
            "kind": self._kind, "coverage": self._coverage, "stopped": self._stopped, "noise_floor": similarity["noise_floor"],
            "noise_floor_dimensions": similarity["noise_floor_dimensions"],
            "equivalence": similarity["equivalence"],
            "held_out": [
                {**{key: each[key] for key in ("a", "overall", "dimensions")},
                 "verdict": with_names(each["verdict"], "that run", "the twin")}
                for each in held_out
            ],
            "rounds": self._records, "assumptions": self._wanted.twin.assumptions, "source": source_summary(self._traces[0]),
        }  # fmt: skip
        write_json(self._directory / SUMMARY, document)
        return document


def source_summary(trace: Trace) -> dict[str, Any]:
    """Return what may be known of the job wherever its twin goes: counts, bytes, times and the kind of machine; no names."""
    manifest, host = trace.manifest, trace.manifest.host
    phases = trace.phases()
    seconds = (phases["end_ns"] - phases["start_ns"]).groupby(phases["phase"].astype(str)).sum() / 1e9
    return {
        "counts": manifest.counts, "events": manifest.events, "lost": manifest.lost_events, "backend": manifest.backend,
        "wall_s": manifest.cost.wall_ns / 1e9, "seconds_by_phase": {name: round(float(s), 3) for name, s in seconds.items()},
        "machine": {
            "kernel": host.kernel, "cpus": host.cpus, "memory_bytes": host.memory_bytes, "architecture": host.architecture,
        },
    }  # fmt: skip


def _backend_like(trace: Trace) -> str:
    """The backend that the job was traced with, if it works here: two that count alike still differ in what they cost."""
    from tracing_tools.backends import BACKEND_NAMES, unavailable_reason

    name = trace.manifest.backend
    return name if name in BACKEND_NAMES and unavailable_reason(name) is None else "auto"


def _score(overall: float | None) -> str:
    return "score withheld" if overall is None else f"overall {overall:.3f}"
