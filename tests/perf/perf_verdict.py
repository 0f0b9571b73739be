"""How often is the verdict wrong? Reruns of jobs that should be called alike, wrong twins that should be called different.

    python -m tests.perf.perf_verdict [DIRECTORY [SHARE]]

The jobs are the emulator's own, about two seconds each, so that 40 of either kind can be traced. Each of them is held against a
run of its job and three reruns, which are not among those tried. SHARE below 1 tries fewer. With a DIRECTORY
the traces stay there.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.own_command import own_command
from tests.perf.figures import Figure
from tracesim import compare
from tracing_tools.recorder.session import Options, trace_command
from tracing_tools.trace.reader import Trace

_REFERENCES = 4  # a run of the job and three reruns
_TRIED = 20  # of each job: as many reruns as wrong twins
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

    def text(self) -> str:
        return _COMMON + self.yaml.format(**vars(self))

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


def _emulate(folder: Path, job: _Job, edits: list[str], seed: int, generate: bool = False) -> list[str]:
    record_bytes = next((edit.partition("=")[2] for edit in edits if "record_length" in edit), str(job.record_bytes))
    edits = [
        *edits, f"dataset.data_folder={folder / record_bytes}", f"checkpoint.checkpoint_folder={folder / 'checkpoints'}",
        f"output.folder={folder / 'output'}", f"train.seed={seed}",
    ]  # fmt: skip
    if generate:
        edits += ["workflow.generate_data=true", *(f"workflow.{part}=false" for part in ("train", "evaluation", "checkpoint"))]
    return own_command("emulate", folder / "job.yaml", *(f"++workload.{edit}" for edit in edits))


def _trace(command: list[str], path: Path) -> Trace:
    if not path.exists():
        manifest = trace_command(command, path, Options(forward_output=False))
        assert manifest.exit_status == 0, (path / "logs" / "stderr").read_text()
    return Trace(path)


def _record(folder: Path, job: _Job, tried: int) -> tuple[list[Trace], list[tuple[str, Trace]]]:
    """Trace the references and the tried runs, reruns and wrong twins in turn: none has the machine's quiet minutes to itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(job.text())
    wrong = list(job.wrong().items())
    for edits in ([], job.wrong()["10 % of bytes missing"]):
        _trace(_emulate(folder, job, edits, 0, generate=True), folder / f"generate-{len(edits)}.trace")
    references: list[Trace] = []
    runs: list[tuple[str, Trace]] = []
    for number in range(tried):
        if number % max(tried // _REFERENCES, 1) == 0 and len(references) < _REFERENCES:
            references.append(_trace(_emulate(folder, job, [], 1000 + number), folder / f"reference-{number}.trace"))
        name, edits = wrong[number % len(wrong)]
        for what, changes, seed in (("rerun", [], number), (name, edits, 100 + number)):
            path = folder / f"{what.replace(' ', '-').replace('%', 'percent')}-{number}.trace"
            runs.append((what, _trace(_emulate(folder, job, changes, seed), path)))
    return references, runs


def judged(references: list[Trace], runs: list[tuple[str, Trace]]) -> list[tuple[str, dict[str, Any]]]:
    """Return what was tried and the document of its comparison."""
    return [(what, compare(references[0], run, references[1:]).to_document()) for what, run in runs]


def measure(directory: Path | None = None, share: float = 1.0) -> Iterator[Figure]:
    """Yield the two error rates; the traces stay in `directory`, where it is given, with verdicts.json."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as scratch:
        folder = directory or Path(scratch)
        found = [
            (f"{name}: {what}", document)
            for name, job in JOBS.items()
            for what, document in judged(*_record(folder / name, job, round(_TRIED * share)))
        ]
        if directory is not None:
            (directory / "verdicts.json").write_text(json.dumps(found, indent=1))
    reruns = [document for what, document in found if what.endswith("rerun")]
    wrong = [(what, document) for what, document in found if not what.endswith("rerun")]
    alike = [d["equivalence"]["result"] == "alike" for d in reruns]
    different = [d["equivalence"]["result"] == "different" for _, d in wrong]
    missed = sorted({what for (what, _), seen in zip(wrong, different, strict=True) if not seen})
    ratios = [d["equivalence"]["distance_ratio"] for d in reruns]
    yield Figure(
        f"verdict: of {len(alike)} reruns, % called alike", 100 * float(np.mean(alike)), 95, False,
        f"median distance ratio {np.median(ratios):.2f}",
    )  # fmt: skip
    yield Figure(
        f"verdict: of {len(different)} wrong twins, % called different", 100 * float(np.mean(different)), 100, False,
        f"not noticed: {', '.join(missed) or 'none'}",
    )  # fmt: skip


if __name__ == "__main__":
    arguments = sys.argv[1:]
    for figure in measure(Path(arguments[0]) if arguments else None, float(arguments[1]) if len(arguments) > 1 else 1.0):
        print(figure.line(), flush=True)
