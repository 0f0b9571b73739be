"""Make a twin from a trace: fit it, generate its data set, then run it, compare and correct until it gets no better."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, new_folder, write_json, write_whole
from iotwin.common.foreign_files import read_foreign, read_foreign_json
from iotwin.common.progress import note
from iotwin.common.result_folder import MadeFolder
from iotwin.common.units import format_size
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache import cache_in_pages, found_in_pages
from iotwin.loops.traced import run_traced
from iotwin.own_command import own_command
from iotwin.trace_store.reader import Trace

if TYPE_CHECKING:
    from iotwin.benchmark.fit import Kind
    from iotwin.benchmark.fit.twin_parts import Fitted
    from iotwin.workload_yaml import Config

KIND = "twin"  # kind of the folder in its list of entries, .iotwin.json
TWIN, RECIPE, SUMMARY, RECORDING = "twin.yaml", "dataset.csv", "summary.json", "twin.recording"
OUTPUT, DATA = "output", "data"
_MOST_RECIPE_BYTES = 256 << 20  # the most that read_recipe reads
# Keys of a finished twin's summary.
_FINISHED = ("overall", "verdict", "noise_floor", "best_round", "source", "rounds", "assumptions")
_LEAST_VOLUME = 0.90  # if calls and bytes score less, the fit is wrong, which no correction of times can mend
_LEAST_GAIN = 0.001  # a round that improves the overall score by less is the last


def make_twin(paths: Sequence[Path], directory: Path, rounds: int, force: bool, kind: "Kind" = "auto") -> dict[str, Any]:
    """Make the twin of the job traced at `paths[0]` in `directory` and return its record, which is also written there.

    The other paths are traces of reruns of the job. They give the noise floor, at which correction ends, and the finished twin is
    compared with them, since fit has not read them. Each round's YAML, trace and similarity remain in a folder.
    If `kind` is auto and the run of the structured twin differs from the job, a recorded twin replaces it if that scores higher.
    """
    from iotwin.benchmark.fit import fit

    traces = [Trace(path) for path in paths]
    fitted = fit(traces[0], kind)
    folder = MadeFolder.claim(directory, KIND, force)
    made = _Rounds(traces, fitted, folder, [])
    made.run_all(rounds)
    if kind == "auto" and fitted.recording is None and made.differs and (recorded := _recorded_instead(traces[0], made)):
        instead = _Rounds(traces, recorded, folder, made.records)
        instead.run_all(1)
        if instead.likeness > made.likeness:
            made = instead
        else:
            note("the recorded twin is no nearer: the structured one stays, which can be edited")
            made.keep_also(instead)
    return made.finish()


def _recorded_instead(trace: Trace, made: "_Rounds") -> "Fitted | None":
    """Return the recorded twin of a job whose structured twin differs from it; None if the trace allows no recorded twin."""
    from iotwin.benchmark.fit import fit

    try:
        fitted = fit(trace, "recorded")
    except IotwinError:
        return None
    fitted.evidence["kind"] = (
        f"recorded, as the run of the structured one is different (--kind structured can be edited): {made.difference}"
    )
    return fitted


def _make_data(fitted: "Fitted", folder: MadeFolder) -> list[Path]:
    from iotwin.datagen.datasets.recorded import write_recipe
    from iotwin.workload_yaml import dump
    from iotwin.workload_yaml.recording import write_recording

    if fitted.recording is not None and fitted.config.twin.recorded is not None:
        write_recording(fitted.recording, folder.entry(RECORDING))
        fitted.config.twin.recorded.file = str(folder.directory.absolute() / RECORDING)
    start_up = [(_start_up_name(name, index), size) for index, (name, size) in enumerate(fitted.start_up.files)]
    fitted.config.twin.startup_files = [name for name, _ in start_up]
    recipe = folder.entry(RECIPE)
    before = read_foreign(recipe, _MOST_RECIPE_BYTES) if recipe.exists() else None
    write_recipe(recipe, sorted(dict([*fitted.files, *start_up]).items()))
    if before is not None and read_foreign(recipe, _MOST_RECIPE_BYTES) != before:  # the data set is that of another kind of twin
        folder.clear(DATA)
    folder.entry(DATA)
    dump(fitted.config, folder.entry(TWIN))  # generate_data reads it; the best round replaces it
    return generate_data(folder.directory)


def _start_up_name(name: str, number: int) -> str:
    """Return the name, in the twin's data set, of a file that the job reads before training.

    A file outside of the job's data folder gets a new name. It keeps its folder's name, which identifies files of a checkpoint.
    """
    path = PurePosixPath(name)
    return f"start-up/{number}/{path.parent.name or 'root'}/{path.name}" if path.is_absolute() else name


def generate_data(directory: Path) -> list[Path]:
    """Write the data set that the recipe in `directory` lists, unless it exists already, and return its files.

    If the job maps its data, the files are cached as the job found them (see `found_in_pages`).
    """
    from iotwin.datagen.datasets.recorded import read_recipe
    from iotwin.datagen.generate import generate

    layout = read_recipe(directory / RECIPE)
    note(f"data set: {len(layout.files)} files, {format_size(sum(size for _, size in layout.files))}")
    if not layout.files:  # a job that only writes
        make_folder(directory / DATA, below=directory)
        return []
    generate(layout, directory / DATA, samples=len(layout.files))
    for file, stretches in found_in_pages(directory / RECORDING, directory / TWIN, layout.files):
        cache_in_pages(directory / DATA / file, stretches)
    return [directory / DATA / name for name, _ in layout.files]


def confine(config: "Config", directory: Path) -> None:
    """Change the workload so that it reads and writes below `directory` only."""
    config.dataset.data_folder = str(directory / DATA)
    config.checkpoint.checkpoint_folder = config.output.folder = str(directory / OUTPUT)


class _Rounds:
    """Runs a fitted twin in rounds, each in a separate folder. A round runs, compares and corrects the twin.

    `earlier`: records of the rounds of another twin of the same job, which come first.
    """

    def __init__(self, traces: list[Trace], fitted: "Fitted", folder: MadeFolder, earlier: list[dict[str, Any]]) -> None:
        self._traces, self._fitted, self._folder, self._directory = traces, fitted, folder, folder.directory
        self._config = fitted.config
        self.records = list(earlier)
        self._best: dict[str, Any] | None = None
        self._stopped: str | None = None

    def run_all(self, rounds: int) -> None:
        """Generate the data set and run up to `rounds` rounds, until the twin gets no better."""
        from iotwin.benchmark.fit.coverage import describe_coverage

        note(self._fitted.evidence["kind"])
        note(describe_coverage(self._fitted.coverage))
        files = self._lay_out()
        first = len(self.records) + 1
        with kept_cached(files if "page_fault" in self._traces[0].manifest.counts else []):
            for number in range(first, first + rounds):
                if not self._run(number):
                    break

    def _lay_out(self) -> list[Path]:
        files = _make_data(self._fitted, self._folder)
        confine(self._fitted.config, self._directory.absolute())
        return files

    @property
    def likeness(self) -> tuple[bool, float]:
        """Sort key that is greater for a twin whose best run is more like the job: not different, then the score."""
        best = self._best
        return (not self.differs, best["overall"]) if best else (False, 0.0)

    @property
    def differs(self) -> bool:
        """True if the verdict on the best run is that it differs from the job."""
        return self._best is not None and self._best["verdict"].startswith("different")

    @property
    def difference(self) -> str:
        """The first difference that the verdict on the best run names."""
        verdict = self._best["verdict"] if self._best else ""
        return str(verdict).partition(": ")[2].partition(";")[0]

    def keep_also(self, other: "_Rounds") -> None:
        """Add the records of the `other` twin's rounds, which ran later, and generate this twin's data set again."""
        self.records = other.records
        self._folder.clear(RECORDING)
        self._lay_out()

    def _run(self, number: int) -> bool:
        """Run and score round `number`, and return whether another round may score higher."""
        from iotwin.benchmark.fit import structured
        from iotwin.benchmark.fit.calibrate import corrected
        from iotwin.benchmark.fit.look import look
        from iotwin.tracesim import compare
        from iotwin.tracesim.sentences import with_names
        from iotwin.workload_yaml import dump

        note(f"round {number}: running the twin")
        folder = self._folder.entry(f"round-{number}")
        new_folder(folder)
        dump(self._config, folder / TWIN)
        self._folder.entry(OUTPUT)
        self._folder.clear(OUTPUT)
        real = self._traces[0]
        command = own_command("emulate", folder / TWIN)
        run_traced(
            command,
            folder / "twin.trace",
            real.manifest.workload or "twin",
            _backend_like(real),
            page_faults="page_fault" in real.manifest.counts,
            prints_events=False,
        )
        run = Trace(folder / "twin.trace")
        similarity = compare(real, run, repeats=self._traces[1:]).to_document()
        write_json(folder / "similarity.json", similarity)
        record = {"round": number, **{key: similarity[key] for key in ("overall", "dimensions", "verdict")}}
        record["verdict"] = with_names(record["verdict"], "the job", "its twin")
        self.records.append(record)
        overall = similarity["overall"]
        note(f"round {number}: {_score(overall)}")
        if overall is None or (self._best is not None and overall < self._best["overall"] + _LEAST_GAIN):
            return False
        self._best = record
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
            return False  # a recorded twin repeats the job's own times, so there is nothing to correct
        self._config = corrected(self._config, self._fitted.config, structured(look(run)).config)
        return True

    def finish(self) -> dict[str, Any]:
        """Make the best round's YAML the twin, write summary.json, and return its content."""
        from iotwin.tracesim import compare
        from iotwin.tracesim.sentences import with_names
        from iotwin.workload_yaml.yaml12 import LARGEST_BYTES

        best = self._best or self.records[0]
        folder = self._directory / f"round-{best['round']}"
        write_whole(self._directory / TWIN, read_foreign(folder / TWIN, LARGEST_BYTES))
        held_out = [
            compare(rerun, Trace(folder / "twin.trace"), [other for other in self._traces if other is not rerun]).to_document()
            for rerun in self._traces[1:]
        ]
        similarity = read_foreign_json(folder / "similarity.json")
        document = {
            "directory": str(self._directory), "twin": str(self._directory / TWIN), "best_round": best["round"],
            "overall": best["overall"], "verdict": best["verdict"],
            "caveats": [with_names(caveat, "the job", "its twin") for caveat in similarity["caveats"]],
            "kind": self._fitted.evidence["kind"], "coverage": self._fitted.coverage, "stopped": self._stopped,
            "noise_floor": similarity["noise_floor"],
            "noise_floor_dimensions": similarity["noise_floor_dimensions"],
            "equivalence": similarity["equivalence"],
            "held_out": [
                {**{key: each[key] for key in ("a", "overall", "dimensions")},
                 "verdict": with_names(each["verdict"], "that run", "the twin"),
                 "caveats": [with_names(caveat, "that run", "the twin") for caveat in each["caveats"]]}
                for each in held_out
            ],
            "rounds": self.records, "assumptions": self._fitted.config.twin.assumptions,
            "source": source_summary(self._traces[0]),
        }  # fmt: skip
        write_json(self._folder.entry(SUMMARY), document)
        return document


def read_summary(directory: Path) -> dict[str, Any]:
    """Return summary.json of the finished twin in `directory`. Raises UsageError if there is no finished twin."""
    advice = f"make one: iotwin twin TRACE -o {directory}"
    try:
        summary = read_foreign_json(directory / SUMMARY)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{directory} holds no twin ({SUMMARY} is missing); {advice}") from None
    missing = [key for key in _FINISHED if not isinstance(summary, dict) or key not in summary]
    if missing or not isinstance(summary["source"], dict) or not isinstance(summary["source"].get("counts"), dict):
        raise UsageError(
            f"{directory / SUMMARY} is not that of a finished twin: '{(missing or ['source'])[0]}' is missing; {advice}"
        )
    return {**summary}


def source_summary(trace: Trace) -> dict[str, Any]:
    """Return the properties of the traced job that may be published: counts, times and kind of machine, but no names."""
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
    """Return the backend that the job was traced with if it works here, else auto. Backends slow a job by different amounts."""
    from iotwin.tracing_tools.backends import BACKEND_NAMES, unavailable_reason

    name = trace.manifest.backend
    return name if name in BACKEND_NAMES and unavailable_reason(name) is None else "auto"


def _score(overall: float | None) -> str:
    return "score withheld" if overall is None else f"overall {overall:.3f}"
