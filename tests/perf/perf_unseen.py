"""Jobs that nothing here was written for: four shapes of fio and training jobs of public data paths, fitted and twinned.

    python -m tests.perf.perf_unseen [NAME ...] [--part labels|twin ...]

The shapes are the job files of tests/perf/fio, the training jobs the programs of tests/perf/unseen, which log nothing. Each is
traced twice: the twin is fitted to the first run and compared with the second, which fit has not seen. While a job or its twin
runs, the data that it maps remain in the page cache, page by page. A training job has two parts:

* `labels`: the labels of its calls, compared with how its program reads
* `twin`: the twin that `iotwin twin` makes, compared with the run that fit has not seen

perf_edits measures what edited twins of these jobs predict.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from iotwin.benchmark.fit.batches.labels import Label, label_calls
from iotwin.benchmark.fit.traced_job import look
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache_state import cache_in_pages
from iotwin.loops.twin_from_trace import make_twin
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import READ_OPS
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_JOBS = Path(__file__).parent / "fio"
_PROGRAMS = Path(__file__).parent / "unseen"
# By name: program and its options; what is mapped is traced with its page faults.
TRAINING = {
    "HDF5 chunks": ("hdf5",), "tar shards": ("tar_shards",), "a .pt file a sample": ("features",),
    "a resumed job": ("features", "--resume"), "two ranks": ("two_ranks",), "distributed checkpoints": ("two_ranks", "--sharded"),
    "Parquet": ("parquet",), "mapped Arrow tables": ("arrow",), "mapped tokens": ("tokens",), "chunk files": ("zarr_chunks",),
    "TFRecords": ("tfrecords",), "images and masks": ("pairs",), "a mapped array without loaders": ("memmap",),
    "clips of .wav files": ("clips",), "members of an archive": ("archive",), "SQLite rows": ("sqlite_rows",),
    "a weighted sampler": ("weighted",), "a pool that decodes": ("pickle_pool",), "accumulated JSON lines": ("json_lines",),
    "a tar file with an index": ("indexed_tar",), "mapped .npy files": ("mapped_arrays",),
    "a folder for each class": ("image_folder",), "images without loaders": ("main_process",),
    "threads that prefetch": ("prefetch_threads",), "two folders": ("two_folders",),
    "checkpoints by a thread": ("async_checkpoints",), "gzipped text": ("gzip_text",), "spawned loaders": ("spawned",),
}  # fmt: skip
_MAPPED = ("arrow", "tokens", "memmap", "mapped_arrays")
# How the programs read: the label of nearly all bytes of the data, and of dealt ones how many samples a training batch has.
_LABELS = {
    "hdf5": (Label.DEALT, 8), "tar_shards": (Label.STREAMED, None), "features": (Label.DEALT, 8), "two_ranks": (Label.DEALT, 4),
    "parquet": (Label.STREAMED, None), "arrow": (Label.DEALT, 8), "tokens": (Label.DEALT, 8), "zarr_chunks": (Label.DEALT, 8),
    "tfrecords": (Label.STREAMED, None), "pairs": (Label.DEALT, 8), "memmap": (Label.TIMED, None), "clips": (Label.DEALT, 8),
    "archive": (Label.DEALT, 16), "sqlite_rows": (Label.DEALT, 8), "weighted": (Label.DEALT, 8), "pickle_pool": (Label.DEALT, 8),
    "json_lines": (Label.DEALT, 4), "indexed_tar": (Label.DEALT, 8), "mapped_arrays": (Label.DEALT, 8),
    "image_folder": (Label.DEALT, 8), "main_process": (Label.DEALT, 8), "prefetch_threads": (Label.DEALT, 8),
    "two_folders": (Label.DEALT, 8), "async_checkpoints": (Label.DEALT, 8), "gzip_text": (Label.STREAMED, None),
    "spawned": (Label.DEALT, 6),
}  # fmt: skip


PARTS = ("labels", "twin")


def measure(names: Sequence[str] = (), parts: Sequence[str] = PARTS) -> Iterator[Figure]:
    """Yield the figure of each shape and the figures of the `parts` of each training job, by default of all."""
    for shape in sorted(_JOBS.glob("*.fio")):
        if not names or shape.stem in names:
            with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
                yield _figure(shape, Path(name))
    for name, program in TRAINING.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
                job = UnseenJob(program, Path(folder))
                if "labels" in parts:
                    yield from _labels(name, job, *_LABELS[program[0]])
                if "twin" in parts:
                    yield from _held_out(name, job)


class UnseenJob:
    """A training job and its runs, below `folder`; of what is mapped the page faults are traced."""

    def __init__(self, program: tuple[str, ...], folder: Path) -> None:
        self._program, self.folder = program, folder
        self.groups = ("data", "mmap") if program[0] in _MAPPED else ("data",)
        (folder / "data").mkdir()
        self.make_data()

    def make_data(self, *changed: str) -> None:
        """Let the job make the data that it reads with its options `changed`."""
        subprocess.run(self._command(0, *changed), check=True, capture_output=True)
        shutil.rmtree(self.folder / "data" / "out0")

    def _command(self, seed: int, *changed: str) -> list[str]:
        program, *options = self._program
        return [sys.executable, str(_PROGRAMS / f"{program}.py"), str(self.folder / "data"), str(seed), *options, *changed]

    def run(self, seed: int, *changed: str) -> Path:
        """Run it, with its options `changed`, and return the trace; of the first run always the same."""
        trace = self.folder / f"{seed}{''.join(changed)}.trace"
        if not trace.exists():
            with kept_cached(self.mapped()):
                manifest = trace_command(
                    self._command(seed, *changed), trace, TraceOptions(forward_output=False, detail=self.groups)
                )
            assert manifest.exit_status == 0, (trace / "logs" / "stderr").read_text()
        return trace

    def mapped(self) -> list[Path]:
        """Return the files that the job maps, in the page cache as data that have been read, not as they were just written."""
        if self._program[0] not in _MAPPED:
            return []
        files = [path for path in (self.folder / "data").glob("*/*") if not path.parent.name.startswith("out")]
        for path in files:
            cache_in_pages(path, [(0, path.stat().st_size)])
        return files


def _labels(name: str, job: UnseenJob, label: Label, samples: int | None) -> Iterator[Figure]:
    seen = look(Trace(job.run(1)))
    calls = label_calls(seen).calls
    data = calls[calls["file_id"].isin(seen.file_ids("dataset")) & calls["op"].isin(READ_OPS)]
    share = float(data.loc[data["label"] == label, "result"].sum() / data["result"].sum())
    yield Figure(f"{name}: bytes of the data that are {label.name.lower()}", share, 0.95, False)
    if samples is not None:
        found = data.groupby("batch")["sample"].max() + 1
        yield Figure(f"{name}: batches with the program's {samples} samples", float((found == samples).mean()), 0.85, False)


def _held_out(name: str, job: UnseenJob) -> Iterator[Figure]:
    made = make_twin([job.run(1), job.run(2)], job.folder / "twin", force=False)
    score, floor = made["held_out"][0]["overall"], made["noise_floor"]
    yield Figure(f"{name}, unseen: twin against a rerun, overall", score, min(0.97, floor), False, _told(made))
    yield Figure(f"{name}: bytes read that its twin accounts for", made["coverage"]["read_share"], 0.98, False)


def _told(made: dict[str, Any]) -> str:
    """What else there is to say of a twin held out: its lowest part, also of reruns, the reruns, and the verdict."""
    held_out = made["held_out"][0]
    lowest = min(held_out["dimensions"].items(), key=lambda item: item[1])
    reruns, verdict = made["noise_floor_dimensions"][lowest[0]], held_out["verdict"].partition(":")[0]
    parts = f"lowest part {lowest[0]} {lowest[1]:.3f}, of reruns {reruns:.3f}"
    return f"{parts}; a rerun {made['noise_floor']:.3f}; {verdict}"


def _figure(job: Path, folder: Path) -> Figure:
    data = folder / "data"
    data.mkdir()
    fio = ["env", "-C", str(data), "fio", f"--output={folder / 'fio.log'}", str(job)]
    subprocess.run([*fio, "--create_only=1"], check=True)
    traces = []
    for run in ("job", "rerun"):
        for written in data.glob("checkpoint.*"):
            written.unlink()
        manifest = trace_command(fio, folder / f"{run}.trace", TraceOptions(forward_output=False))
        assert manifest.exit_status == 0, (folder / "fio.log").read_text()
        traces.append(folder / f"{run}.trace")
    shutil.rmtree(data)
    made = make_twin(traces, folder / "twin", force=False)
    score = made["held_out"][0]["overall"]
    return Figure(f"fio's {job.stem}, unseen: twin against a rerun, overall", score, 0.90, False, _told(made))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--part", dest="parts", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    if unknown := set(given.names) - {*TRAINING, *(shape.stem for shape in _JOBS.glob("*.fio"))}:
        parser.error(f"nothing is called {unknown.pop()}; known: {', '.join(TRAINING)}")
    record_figures("unseen", measure(given.names, given.parts))
