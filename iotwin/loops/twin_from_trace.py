"""Make a twin from a trace: fit it, generate its data set, run it and compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from iotwin.command_lines import own_command
from iotwin.common.errors import UsageError
from iotwin.common.files import make_folder, new_folder, write_json
from iotwin.common.progress import note
from iotwin.common.result_folder import MadeFolder
from iotwin.common.units import counted, format_size
from iotwin.common.untrusted_files import read_foreign, read_foreign_json
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache_state import cache_in_pages, found_in_pages, page_faults
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace

if TYPE_CHECKING:
    from iotwin.benchmark.fit.fitted import Fitted
    from iotwin.workload_yaml import Config

KIND = "twin"  # kind of the folder in its list of entries, .iotwin.json
TWIN, RECIPE, SUMMARY, RECORDING = "twin.yaml", "dataset.csv", "summary.json", "twin.recording"
OUTPUT, DATA, RUN = "output", "data", "round-1"
_MOST_RECIPE_BYTES = 256 << 20  # the most that read_recipe reads
# Keys of a finished twin's summary.
_FINISHED = ("overall", "verdict", "noise_floor", "best_round", "source", "rounds", "assumptions")


def make_twin(paths: Sequence[Path], directory: Path, force: bool, clock: Literal["real", "virtual"] = "real") -> dict[str, Any]:
    """Make the twin of the job traced at `paths[0]` in `directory` and return its record, which is also written there.

    The other paths are traces of reruns of the job. They give the noise floor, and the twin's run is also compared with each of
    them, since fit has not read them. YAML, trace and similarity of the run remain in a folder.
    `clock` is that of the run.
    """
    from iotwin.benchmark.fit.coverage import describe_coverage
    from iotwin.benchmark.fit.fit_trace import fit
    from iotwin.tracesim import compare

    traces = [Trace(path) for path in paths]
    fitted = fit(traces[0])
    folder = MadeFolder.claim(directory, KIND, force)
    note(describe_coverage(fitted.coverage) if fitted.coverage else fitted.evidence["pipeline"])
    files = _make_data(fitted, folder)
    confine(fitted.config, directory.absolute())
    with kept_cached(files if "page_fault" in traces[0].manifest.counts else []):
        run = _run(fitted.config, folder, traces[0], clock)
    similarity = compare(traces[0], run, repeats=traces[1:]).to_document()
    write_json(run.path.parent / "similarity.json", similarity)
    held_out = [compare(rerun, run, [other for other in traces if other is not rerun]).to_document() for rerun in traces[1:]]
    document = _summary(fitted, directory, similarity, held_out, traces[0])
    write_json(folder.entry(SUMMARY), document)
    return document


def _make_data(fitted: "Fitted", folder: MadeFolder) -> list[Path]:
    from iotwin.datagen.datasets.recorded import write_recipe
    from iotwin.workload_yaml import dump
    from iotwin.workload_yaml.recording import write_recording

    if fitted.recording is not None and fitted.config.twin.recorded is not None:
        write_recording(fitted.recording, folder.entry(RECORDING))
        fitted.config.twin.recorded.file = str(folder.directory.absolute() / RECORDING)
    recipe = folder.entry(RECIPE)
    before = read_foreign(recipe, _MOST_RECIPE_BYTES) if recipe.exists() else None
    write_recipe(recipe, sorted(fitted.files))
    if before is not None and read_foreign(recipe, _MOST_RECIPE_BYTES) != before:  # the data set is that of another twin
        folder.clear(DATA)
    folder.entry(DATA)
    dump(fitted.config, folder.entry(TWIN))  # generate_data reads it
    return generate_data(folder.directory)


def generate_data(directory: Path) -> list[Path]:
    """Write the data set that the recipe in `directory` lists, unless it exists already, and return its files.

    If the job maps its data, the files are cached as the job found them (see `found_in_pages`).
    """
    from iotwin.datagen.datasets.recorded import read_recipe
    from iotwin.datagen.generate import generate
    from iotwin.workload_yaml.recording import read_recording

    layout = read_recipe(directory / RECIPE)
    note(f"data set: {counted(len(layout.files), 'file')}, {format_size(sum(size for _, size in layout.files))}")
    if not layout.files:  # a job that only writes
        make_folder(directory / DATA, below=directory)
        return []
    generate(layout, directory / DATA, samples=len(layout.files))
    if (recording := directory / RECORDING).exists():
        for file, stretches in found_in_pages(page_faults(read_recording(recording)), layout.files):
            cache_in_pages(directory / DATA / file, stretches)
    return [directory / DATA / name for name, _ in layout.files]


def confine(config: "Config", directory: Path) -> None:
    """Change the workload so that it reads and writes below `directory` only."""
    config.dataset.data_folder = str(directory / DATA)
    config.checkpoint.checkpoint_folder = config.output.folder = str(directory / OUTPUT)


def _run(config: "Config", folder: MadeFolder, real: Trace, clock: str) -> Trace:
    from iotwin.workload_yaml import dump

    note("running the twin")
    kept = folder.entry(RUN)
    new_folder(kept)
    for path in (kept / TWIN, folder.directory / TWIN):
        dump(config, path)
    folder.entry(OUTPUT)
    folder.clear(OUTPUT)
    run_traced(
        own_command("emulate", kept / TWIN, f"++twin.clock={clock}"),
        kept / "twin.trace",
        real.manifest.workload or "twin",
        _backend_like(real),
        page_faults="page_fault" in real.manifest.counts,
        prints_events=False,
    )
    return Trace(kept / "twin.trace")


def _summary(
    fitted: "Fitted", directory: Path, similarity: dict[str, Any], held_out: list[dict[str, Any]], real: Trace
) -> dict[str, Any]:
    """Return the content of summary.json. Its `rounds` has one entry, the run; earlier versions wrote several."""
    from iotwin.tracesim.difference_sentences import with_names

    verdict = with_names(similarity["verdict"], "the job", "its twin")
    return {
        "directory": str(directory), "twin": str(directory / TWIN), "best_round": 1,
        "overall": similarity["overall"], "verdict": verdict,
        "caveats": [with_names(caveat, "the job", "its twin") for caveat in similarity["caveats"]],
        "coverage": fitted.coverage, "edits": fitted.evidence["edits"],
        "noise_floor": similarity["noise_floor"],
        "noise_floor_dimensions": similarity["noise_floor_dimensions"],
        "equivalence": similarity["equivalence"],
        "held_out": [
            {**{key: each[key] for key in ("a", "overall", "dimensions")},
             "verdict": with_names(each["verdict"], "that run", "the twin"),
             "caveats": [with_names(caveat, "that run", "the twin") for caveat in each["caveats"]]}
            for each in held_out
        ],
        "rounds": [{"round": 1, "overall": similarity["overall"], "dimensions": similarity["dimensions"], "verdict": verdict}],
        "assumptions": fitted.config.twin.assumptions,
        "source": source_summary(real),
    }  # fmt: skip


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
    from iotwin.tracing_tools.backends.choose_backend import BACKEND_NAMES, unavailable_reason

    name = trace.manifest.backend
    return name if name in BACKEND_NAMES and unavailable_reason(name) is None else "auto"
