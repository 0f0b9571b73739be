"""An emulated run from the data set to the results: what takes datagen, the emulator and the tracer together."""

import math
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from tracing_tools.trace.errors import IotwinError

if TYPE_CHECKING:
    from benchmark.config import Config
    from datagen.layouts import Layout

_CASE_BYTES = 146_600_628  # mean of the unet3d workload's pairs, at scale 1
_DEFAULT_FILES = 8  # DLIO's num_files_train


class Options(NamedTuple):
    """How to run a workload, beside what its YAML says."""

    ranks: int = 1
    limit_s: float | None = None
    log: TextIO | None = None  # where MLLOG lines go


def run_workload(config: "Config", options: Options) -> dict[str, Any] | None:
    """Generate, train, evaluate and checkpoint as the workload says; return the summary, or None on MPI ranks but the first.

    Raises IotwinError for what fails; then nothing runs any more and there are no results.
    """
    # The emulator multiplies no matrices, so threads for it would only cost memory; this must be said before numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from benchmark.files import open_folder
    from benchmark.mpi import under_mpi
    from benchmark.results import prepare_output, write_results

    workflow = config.workflow
    if under_mpi() and options.ranks > 1:
        raise IotwinError("--ranks starts processes on this machine, and mpirun has started them already; leave it out")
    prepare_output(Path(config.output.folder))
    generated = _generate(config) if workflow.generate_data else None
    try:
        if not (workflow.train or workflow.checkpoint):
            return {"generated": generated, "output": config.output.folder}
        measured = _emulate(config, options)
        return None if measured is None else {**write_results(config, measured), "output": config.output.folder}
    finally:
        if generated is not None and not config.dataset.keep_files:
            open_folder(config)[0].remove()


def _emulate(config: "Config", options: Options) -> Any:
    """Return what every rank measured; None on MPI ranks but the first."""
    from benchmark.emulator import emulate
    from benchmark.mpi import run_mpi, under_mpi
    from benchmark.ranks import run_local
    from iotwin.iostat import sampling

    job = partial(emulate, config, options.log, limit_s=options.limit_s)
    samples = config.workflow.profiling and config.profiling.profiler == "iostat"
    path = Path(config.output.folder) / "iostat.json"
    with sampling(path, config.profiling.iostat_devices) if samples else nullcontext():
        return run_mpi(job) if under_mpi() else run_local(options.ranks, job)


def _generate(config: "Config") -> dict[str, Any]:
    """Write the data set that the workload reads, unless it is there already."""
    from benchmark.files import open_folder
    from iotwin.commands.generate import generate_on_nodes

    folder, _ = open_folder(config)
    layout, samples = generated_layout(config)
    request = {"samples": samples, "size_bytes": None, "seed": config.train.seed, "workers": None, "force": False}
    manifest = generate_on_nodes(layout, folder.path, None, request, folder.options)
    return {"directory": folder.path, "samples": samples, "size_bytes": manifest.size_bytes}


def generated_layout(config: "Config") -> "tuple[Layout, int]":
    """Return the layout of the workload's data set and how many samples it has; UsageError for one that cannot be written."""
    import msgspec

    from datagen.config import DatasetSection, Hdf5Section, ParquetSection, layout_of
    from datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout

    dataset = config.dataset
    files = _DEFAULT_FILES if dataset.num_files_train is None else dataset.num_files_train
    if config.twin.layout == "unet3d":
        scale = ((dataset.record_length_bytes or _CASE_BYTES) / _CASE_BYTES) ** (1 / 3)
        return Unet3dLayout(scale=round(scale, 3)), _cases(files, dataset.num_files_eval or 0)
    if config.twin.layout == "bert":
        return BertLayout(), files * dataset.num_samples_per_file
    if config.twin.layout == "dlrm":
        return DlrmLayout(), dataset.num_samples_per_file
    known = {name: getattr(dataset, name) for name in DatasetSection.__struct_fields__ if name not in ("hdf5", "parquet")}
    section = {name: value for name, value in known.items() if value is not None} | {"num_files_train": files}
    hdf5 = msgspec.convert(msgspec.to_builtins(dataset.hdf5), Hdf5Section)
    parquet = msgspec.convert(msgspec.to_builtins(dataset.parquet), ParquetSection)
    return layout_of(DatasetSection(**section, hdf5=hdf5, parquet=parquet)), files * dataset.num_samples_per_file


def _cases(train: int, evaluation: int) -> int:
    """Return the fewest cases of which the layout's split gives enough of both kinds."""
    from datagen.layouts import Unet3dLayout

    every = Unet3dLayout.EVALUATION_EVERY
    return max(train + math.ceil(train / (every - 1)), (evaluation - 1) * every + 1 if evaluation else 0)


def trace_itself(words: list[str], config: "Config") -> dict[str, Any]:
    """Run the command line `words` of ``iotwin emulate`` under the tracer and return its summary, with the trace's place."""
    import json

    from tracing_tools.capture import Options as TraceOptions
    from tracing_tools.capture import trace_command

    folder = Path(config.output.folder)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "iotwin.main", "emulate", *words, "++workload.workflow.profiling=false"]
    options = TraceOptions(workload=config.model.name, force=True, forward_output=False)
    manifest = trace_command(command, folder / "trace", options)
    if manifest.exit_status:
        told = (folder / "trace" / "logs" / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = told[-1].removeprefix("iotwin emulate: ") if told else f"it ended with status {manifest.exit_status}"
        raise IotwinError(f"the traced run failed: {reason}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {**summary, "output": str(folder), "trace": str(folder / "trace")}
