"""Edits of a twin, and how alike the twin so edited is to a run of the job so edited."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path

from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.traced_run import run_traced
from iotwin.loops.twin_from_trace import generate_data
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workload_yaml import Config, dump, load
from tests.perf.figures import Figure


def scale_batch(config: Config, factor: int) -> None:
    """Make training batches `factor` times as large. The emulator makes their steps as many times as long."""
    config.reader.batch_size *= factor


def set_workers(config: Config, workers: int) -> None:
    """Let `workers` loader processes read each pass."""
    config.reader.read_threads = workers


def edited_figure(job: str, what: str, real: Trace, twin: Path, edit: Callable[[Config], None]) -> Figure:
    """Return the figure of the `twin` (its YAML) with the `edit`, compared with the `real` run, which has the same edit."""
    config = copy.deepcopy(load(twin))
    edit(config)
    name = what.replace(" ", "_")
    path, trace = twin.parent / f"{name}.yaml", twin.parent / f"{name}.trace"
    config.checkpoint.checkpoint_folder = config.output.folder = str(twin.parent / f"{name}_out")
    dump(config, path)
    page_faults = "page_fault" in real.manifest.counts
    with kept_cached(generate_data(twin.parent) if page_faults else []):  # as `iotwin twin` does
        run_traced([sys.executable, "-m", "iotwin", "emulate", str(path)], trace, "edited", page_faults=page_faults)
    similarity = compare(real, Trace(trace))
    dimensions = {dimension.name: dimension.score for dimension in similarity.dimensions}
    lowest = min(dimensions, key=lambda name: dimensions[name])
    return Figure(
        f"{job}, {what}: edited twin against the job so edited",
        similarity.overall or 0.0,
        0.90,
        False,
        f"lowest {lowest} {dimensions[lowest]:.3f}",
    )
