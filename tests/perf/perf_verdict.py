"""How often is the verdict wrong? Reruns of jobs that should be called alike, wrong twins that should be called different.

    python -m tests.perf.perf_verdict [DIRECTORY [SHARE]]

Two jobs are the emulator's own, about two seconds each, so that 40 of either kind can be traced; by them the rule was made. Four
are programs of tests/perf/unseen, which log nothing and which the rule was not made by; their wrong twins are the same programs
with a line changed. Each run is held against a run of its job and three reruns, which are not among those tried.
SHARE below 1 tries fewer. With a DIRECTORY the traces stay there.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.command_lines import own_command
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_REFERENCES = 4  # a run of the job and three reruns
_TRIED, _TRIED_UNSEEN = 20, 10  # of each job: as many reruns as wrong twins
_UNSEEN = Path(__file__).parent / "unseen"
_COMMON = """model: {name: made_up, model_size_bytes: 3000000}
framework: pytorch
workflow: {train: true, evaluation: true, checkpoint: true}
"""


@dataclass(frozen=True)
class _Job:
    """A job of the emulator: its YAML, and what is edited in it to make each wrong twin."""

    yaml: str
    files: int
    record_bytes: int
    batch: int
    compute_s: float
    loaders: int

    def prepare(self, folder: Path) -> None:
        """Write the job's YAML and make its data."""
        (folder / "job.yaml").write_text(_COMMON + self.yaml.format(**vars(self)))
        for edits in ([], self.wrong()["10 % of bytes missing"]):
            _trace(self._emulate(folder, edits, 0, generate=True), folder / f"generate-{len(edits)}.trace")

    def command(self, folder: Path, wrong: str | None, seed: int) -> list[str]:
        """Return the command of a run of the job, or of a wrong twin by its name."""
        return self._emulate(folder, self.wrong()[wrong] if wrong else [], seed)

    def wrong(self) -> dict[str, list[str]]:
        return {
            "computation halved": [f"train.computation_time={self.compute_s / 2}"],
            "computation 25 % longer": [f"train.computation_time={self.compute_s * 1.25}"],
            "batch doubled": [f"reader.batch_size={self.batch * 2}"],
            "loaders doubled": [f"reader.read_threads={self.loaders * 2}"],
            "order sequential": ["reader.sample_shuffle=off", "reader.file_shuffle=off"],
            "no fsync": ["checkpoint.fsync=false"],
            "10 % of bytes missing": [f"dataset.record_length_bytes={int(self.record_bytes * 0.9)}"],
        }

    def _emulate(self, folder: Path, edits: list[str], seed: int, generate: bool = False) -> list[str]:
        record_bytes = next((edit.partition("=")[2] for edit in edits if "record_length" in edit), str(self.record_bytes))
        edits = [
            *edits,
            f"dataset.data_folder={folder / record_bytes}",
            f"checkpoint.checkpoint_folder={folder / 'checkpoints'}",
            f"output.folder={folder / 'output'}",
            f"train.seed={seed}",
        ]
        if generate:
            edits += [
                "workflow.generate_data=true",
                *(f"workflow.{part}=false" for part in ("train", "evaluation", "checkpoint")),
            ]
        return own_command("emulate", folder / "job.yaml", *(f"++workload.{edit}" for edit in edits))


_FILES = """dataset: {{format: npz, num_files_train: {files}, num_files_eval: 8, record_length_bytes: {record_bytes}}}
reader: {{batch_size: {batch}, batch_size_eval: 2, read_threads: {loaders}, file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: 3, computation_time: {compute_s}}}
evaluation: {{eval_time: 0.02}}
checkpoint: {{fsync: true}}
"""
_IMAGES = """dataset: {{format: jpeg, num_files_train: {files}, num_files_eval: 16, record_length_bytes: {record_bytes}}}
reader: {{batch_size: {batch}, batch_size_eval: 8, read_threads: {loaders}, file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: 4, computation_time: {{type: normal, mean: {compute_s}, stdev: 0.004}}}}
evaluation: {{eval_time: 0.03}}
checkpoint: {{fsync: true, epochs_between_checkpoints: 2}}
"""
JOBS = {
    "volumes": _Job(_FILES, files=48, record_bytes=400_000, batch=4, compute_s=0.03, loaders=2),
    "images": _Job(_IMAGES, files=192, record_bytes=60_000, batch=16, compute_s=0.025, loaders=3),
}


# By wrong twin: what is replaced by what, in a file that the programs share or in the program itself.
_REPLACED = {
    "computation halved": {"time.sleep(compute_s)": "time.sleep(compute_s / 2)"},
    "computation 25 % longer": {"time.sleep(compute_s)": "time.sleep(compute_s * 1.25)"},
    "batch doubled": {"range(0, len(samples), size)": "range(0, len(samples), 2 * size)", "i : i + size]": "i : i + 2 * size]"},
    "loaders doubled": {'"--workers", type=int, default=2': '"--workers", type=int, default=4'},
    "order sequential": {" rng.permutation(": " np.arange("},
    "no fsync": {"os.fsync(file.fileno())": "pass"},
    "10 % of bytes missing": {"rng.bytes(size)": "rng.bytes(size * 9 // 10)"},
}


@dataclass(frozen=True)
class _Program:
    """A program of tests/perf/unseen; `replaced` instead of what is replaced in others."""

    name: str
    replaced: Mapping[str, dict[str, str]] = field(default_factory=dict)

    def wrong(self) -> dict[str, dict[str, str]]:
        return {**_REPLACED, **self.replaced}

    def prepare(self, folder: Path) -> None:
        """Write the program as it is and as each wrong twin, and make the data of both."""
        for name, replaced in {"": {}, **self.wrong()}.items():
            place = folder / "programs" / name
            place.mkdir(parents=True, exist_ok=True)
            changes = 0
            for part in ("command_line.py", "job_parts.py", f"{self.name}.py"):
                changed = text = (_UNSEEN / part).read_text()
                for old, new in replaced.items():
                    changed = changed.replace(old, new)
                (place / part).write_text(changed)
                changes += changed != text
            assert changes == bool(replaced), (self.name, name)
        for wrong in (None, "10 % of bytes missing"):
            subprocess.run(self.command(folder, wrong, 0), check=True)

    def command(self, folder: Path, wrong: str | None, seed: int) -> list[str]:
        """Return the command of a run of the job, or of a wrong twin by its name."""
        data = folder / ("less" if wrong == "10 % of bytes missing" else "data")
        data.mkdir(exist_ok=True)
        return [sys.executable, str(folder / "programs" / (wrong or "") / f"{self.name}.py"), str(data), str(seed)]


_CHUNKS = {"10 % of bytes missing": {"_CHUNK),": "_CHUNK * 9 // 10),"}}
_CROPS = {
    "order sequential": {"int(own.integers(sizes[which] - size))": "opened[which].tell() % (sizes[which] - size)"},
    "10 % of bytes missing": {"100_000\n": "90_000\n"},
}
_SHARDS = {
    "batch doubled": {"40_000, 16": "40_000, 32", "steps(160)": "steps(80)"},
    "order sequential": {"self._rng.permutation(": "np.arange("},
}
UNSEEN = {
    "image files": _Program("images"),
    "chunks of one file": _Program("chunks", _CHUNKS),
    "crops with replacement": _Program("crops", _CROPS),
    "shards": _Program("shards", _SHARDS),
}


def _trace(command: list[str], path: Path) -> Trace:
    if not path.exists():
        manifest = trace_command(command, path, TraceOptions(forward_output=False))
        assert manifest.exit_status == 0, (path / "logs" / "stderr").read_text()
    return Trace(path)


def _record(folder: Path, job: _Job | _Program, tried: int) -> tuple[list[Trace], list[tuple[str, Trace]]]:
    """Trace the references and the tried runs, reruns and wrong twins in turn: none has the machine's quiet minutes to itself."""
    folder.mkdir(parents=True, exist_ok=True)
    job.prepare(folder)
    wrong = list(job.wrong())
    references: list[Trace] = []
    runs: list[tuple[str, Trace]] = []
    for number in range(tried):
        if number % max(tried // _REFERENCES, 1) == 0 and len(references) < _REFERENCES:
            references.append(_trace(job.command(folder, None, 1000 + number), folder / f"reference-{number}.trace"))
        name = wrong[number % len(wrong)]
        for what, changed, seed in (("rerun", None, 1 + number), (name, name, 100 + number)):
            path = folder / f"{what.replace(' ', '-').replace('%', 'percent')}-{number}.trace"
            runs.append((what, _trace(job.command(folder, changed, seed), path)))
            for output in folder.glob("*/out*"):  # of a program, with its checkpoints
                shutil.rmtree(output)
    return references, runs


def judged(references: list[Trace], runs: list[tuple[str, Trace]]) -> list[tuple[str, dict[str, Any]]]:
    """Return what was tried and the document of its comparison."""
    return [(what, compare(references[0], run, references[1:]).to_document()) for what, run in runs]


def measure(directory: Path | None = None, share: float = 1.0) -> Iterator[Figure]:
    """Yield the two error rates of either set of jobs; the traces stay in `directory`, if it is given, with verdicts.json."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as scratch:
        folder = directory or Path(scratch)
        every = []
        for jobs, tried, whose in ((JOBS, _TRIED, ""), (UNSEEN, _TRIED_UNSEEN, ", jobs that it was not made by")):
            found = [
                (f"{name}: {what}", document)
                for name, job in jobs.items()
                for what, document in judged(*_record(folder / name, job, round(tried * share)))
            ]
            yield from _figures(found, whose)
            every += found
        if directory is not None:
            (directory / "verdicts.json").write_text(json.dumps(every, indent=1))


def _figures(found: list[tuple[str, dict[str, Any]]], whose: str) -> Iterator[Figure]:
    reruns = [document for what, document in found if what.endswith("rerun")]
    wrong = [(what, document) for what, document in found if not what.endswith("rerun")]
    alike = [d["equivalence"]["result"] == "alike" for d in reruns]
    different = [d["equivalence"]["result"] == "different" for _, d in wrong]
    missed = sorted({what for (what, _), seen in zip(wrong, different, strict=True) if not seen})
    ratios = [d["equivalence"]["distance_ratio"] for d in reruns]
    yield Figure(
        f"verdict{whose}: of {len(alike)} reruns, % called alike",
        100 * float(np.mean(alike)),
        95,
        False,
        f"median distance ratio {np.median(ratios):.2f}",
    )
    yield Figure(
        f"verdict{whose}: of {len(different)} wrong twins, % called different",
        100 * float(np.mean(different)),
        100,
        False,
        f"not noticed: {', '.join(missed) or 'none'}",
    )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    record_figures(
        "verdict", measure(Path(arguments[0]) if arguments else None, float(arguments[1]) if len(arguments) > 1 else 1.0)
    )
