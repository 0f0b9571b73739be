"""Run an emulated workload, from generating its data set to writing the results."""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, write_whole
from iotwin.common.mllog import FOR_TRACERS, MlLog
from iotwin.common.progress import note, set_quiet
from iotwin.common.ranks import launched_by_mpi
from iotwin.common.units import counted, format_size
from iotwin.common.untrusted_files import read_foreign_end, read_foreign_json

if TYPE_CHECKING:
    from iotwin.benchmark.emulator.journal import Measured
    from iotwin.benchmark.emulator.results.step_table import StepTable
    from iotwin.datagen.layouts import Layout
    from iotwin.workload_yaml import Config

_CASE_BYTES = 146_600_628  # mean bytes of an image and its mask in the unet3d workload, at scale 1


class EmulationOptions(NamedTuple):
    """The settings of a run that the workload's YAML does not hold."""

    ranks: int = 1
    limit_s: float | None = None
    log: TextIO | None = None  # stream for MLLOG lines; None: no lines
    notes: Mapping[str, str] = MappingProxyType({})  # files to write into the output folder: from name to content
    events: bool = False  # write every rank's events into the output folder, in DFTracer's format (.pfw)
    as_dlio: bool = False  # generate data also into a folder with other files, as dlio_benchmark does
    instrument: bool = False  # log every part of every step of rank 0
    one_of_several: bool = False  # this process makes several runs, so the time before this run is no part of the job's start-up


def run_workload(config: "Config", options: EmulationOptions) -> dict[str, Any] | None:
    """Run the workload: generate data, train, evaluate and checkpoint. Return the summary, or None on MPI ranks above 0.

    Raises IotwinError if anything fails. Then all ranks have ended, and no results are written.
    """
    from iotwin.benchmark.emulator.data.train_eval_files import open_folder
    from iotwin.benchmark.emulator.ranks import started_as, under_mpi
    from iotwin.benchmark.emulator.results.run_files import prepare_output, write_results
    from iotwin.benchmark.emulator.results.step_table import StepTable
    from iotwin.loops.generation import remove_anywhere
    from iotwin.loops.pipeline_twin import expand_plan

    workflow = config.workflow
    expand_plan(config)
    if under_mpi() and options.ranks > 1:
        raise IotwinError("--ranks starts processes on this machine, and mpirun has started them already; leave it out")
    if started_as() == 0:
        prepare_output(Path(config.output.folder), options.notes)
    else:
        set_quiet(True)  # only rank 0 reports progress
    start_s = time.time()
    generated = _generate(config, options.as_dlio) if workflow.generate_data else None
    try:
        if not (workflow.train or workflow.checkpoint):
            if started_as() > 0:
                return None
            _log_generation(config, start_s)
            return {"generated": generated, "output": config.output.folder}
        with _clock(config, options):
            if config.twin.recorded is not None:
                return _replay(config, options)
            table = StepTable(folder=config.output.folder)
            measured = _emulate(config, options, table)
            if measured is None:
                return None
            for one in measured:
                table.add(one.rank, one.steps.take())  # those that the rank has not sent
            if options.events:
                _write_events(config, measured, table)
            document = {**write_results(config, measured, table), "output": config.output.folder}
            if config.twin.pipeline is not None:
                from iotwin.benchmark.emulator.results.pipeline_summary import pipeline_summary

                document["pipeline"] = pipeline_summary(config, measured, table)
            return document
    finally:
        if generated is not None and generated["samples"] and not config.dataset.keep_files and started_as() == 0:
            folder, _ = open_folder(config)
            remove_anywhere(folder.path, folder.options)


@contextmanager
def _clock(config: "Config", options: EmulationOptions) -> Iterator[None]:
    """Run the block on the workload's clock, and log the jumps of a virtual one if the block succeeds.

    Raises IotwinError if the clock is virtual and mpirun starts the ranks.
    """
    if config.twin.clock == "real":
        yield
        return
    from iotwin.benchmark.emulator.ranks import under_mpi
    from iotwin.benchmark.emulator.virtual_clock import log_jumps
    from iotwin.benchmark.emulator.waits import on_virtual_clock

    if under_mpi():
        raise IotwinError("a virtual clock is that of one machine; run with twin.clock=real, or with --ranks N without mpirun")
    ranks = options.ranks
    if config.twin.recorded is not None:
        from iotwin.benchmark.emulator.recorded.replay_rank import replays_of

        ranks = replays_of(config, ranks)
    with on_virtual_clock(ranks) as clock:
        yield
        log_jumps(clock, MlLog(options.log, FOR_TRACERS))


def _log_generation(config: "Config", start_s: float) -> None:
    """Write dlio.log of a run that only generated data and began at `start_s` (seconds since 1970)."""
    from iotwin.benchmark.emulator.results.dlio_text_files import generation_lines

    lines = generation_lines(launched_by_mpi().size, start_s, time.time())
    write_whole(Path(config.output.folder) / config.output.log_file, "".join(lines).encode())


def _write_events(config: "Config", measured: "Sequence[Measured]", table: "StepTable") -> None:
    from iotwin.benchmark.emulator.results.ai_events import rank_events, write_pfw

    for one in measured:
        path = Path(config.output.folder) / f"trace-{one.rank}-of-{len(measured)}.pfw"
        write_pfw(path, rank_events(config, one, table.of_rank(one.rank)), one.rank, one.host.hostname)


def _emulate(config: "Config", options: EmulationOptions, table: "StepTable") -> Any:
    """Return the measurements of all ranks, whose steps go to `table`; None on MPI ranks above 0."""
    from iotwin.benchmark.emulator.ranks import run_local, run_mpi, under_mpi
    from iotwin.benchmark.emulator.run import emulate
    from iotwin.loops.iostat import sampling

    if config.twin.pipeline is not None:
        from iotwin.benchmark.emulator.pipeline import run_pipeline

        return run_pipeline(config, options.log, options.ranks, options.limit_s, options.instrument, table.add)
    job = partial(emulate, config, options.log, limit_s=options.limit_s, instrument=options.instrument)
    samples = config.workflow.profiling and config.profiling.profiler == "iostat"
    path = Path(config.output.folder) / "iostat.json"
    with sampling(path, config.profiling.iostat_devices) if samples else nullcontext():
        return run_mpi(job, table.add) if under_mpi() else run_local(options.ranks, job, table.add)


def _replay(config: "Config", options: EmulationOptions) -> dict[str, Any]:
    """Replay the recording of a twin on every rank. Return the summary."""
    from iotwin.benchmark.emulator.ranks import run_local, under_mpi
    from iotwin.benchmark.emulator.recorded.replay_rank import replay, replays_of
    from iotwin.benchmark.emulator.recorded.replay_summary import write_replayed

    if under_mpi():
        raise IotwinError("a recorded twin runs on one machine, without mpirun; give --ranks N")
    if options.instrument:
        raise UsageError("--instrument has no effect on a recorded twin, which repeats the job's calls; leave it out")
    if config.twin.recorded is not None:
        make_copies(config, config.twin.recorded.file, options.ranks)
    starts_anew = options.one_of_several
    count = replays_of(config, options.ranks)
    job = partial(replay, config, options.log, limit_s=options.limit_s, starts_anew=starts_anew, job_ranks=options.ranks)
    return {**write_replayed(config, run_local(count, job)), "output": config.output.folder}


def check_edits(config: "Config", ranks: int) -> None:
    """Raise UsageError, which names the key, if the workload's recording cannot follow the changes that `config` makes of it."""
    from iotwin.benchmark.emulator.recorded.edits.edited_recording import edit
    from iotwin.benchmark.emulator.recorded.edits.requested_edits import edits_of
    from iotwin.workload_yaml.recording import read_recording

    if config.twin.recorded is not None:
        recording = read_recording(Path(config.twin.recorded.file))
        if (edits := edits_of(config, recording.header, ranks)) is not None:
            edit(recording, edits)


def make_copies(config: "Config", file: str, ranks: int) -> None:
    """Write copies of the data set's files, unless they exist. A twin with more samples than its job reads these copies.

    `file`: path of the twin's recording. New copies that the twin maps are cached as the job found its data.
    """
    from iotwin.benchmark.emulator.recorded.edits.edited_recording import copies_needed
    from iotwin.datagen.generate import generate
    from iotwin.datagen.layouts import RecordedLayout
    from iotwin.datagen.manifest import MANIFEST_NAME

    if needed := copies_needed(config, file, ranks):
        from iotwin.loops.page_cache_state import cache_in_pages, found_in_pages, page_faults  # imports pandas

        files, folder, edited = needed
        are_new = not os.path.lexists(folder / MANIFEST_NAME)
        note(f"{folder}: {counted(len(files), 'copy')} of files of the data set, {format_size(sum(size for _, size in files))}")
        generate(RecordedLayout(tuple(files)), folder, samples=len(files))
        for name, stretches in found_in_pages(page_faults(edited), files) if are_new else ():
            cache_in_pages(folder / name, stretches)


def _generate(config: "Config", as_dlio: bool) -> dict[str, Any]:
    """Write the workload's data set unless it exists. `as_dlio`: write it even into a folder that holds other files."""
    from iotwin.benchmark.emulator.data.train_eval_files import open_folder
    from iotwin.benchmark.emulator.readers.open_reader import file_format
    from iotwin.loops.generation import generate_anywhere

    folder, _ = open_folder(config)
    if file_format(config) == "synthetic":
        note("synthetic samples are in no files, so none are generated")
        return {"directory": folder.path, "samples": 0, "size_bytes": 0}
    layout, samples = generated_layout(config)
    existing = "keep" if as_dlio else "refuse"
    request = {"samples": samples, "size_bytes": None, "seed": config.train.seed, "workers": None, "existing": existing}
    manifest = generate_anywhere(layout, folder.path, None, request, folder.options)
    return {"directory": folder.path, "samples": samples, "size_bytes": manifest.size_bytes}


def generated_layout(config: "Config") -> "tuple[Layout, int]":
    """Return the layout of the workload's data set and its number of samples. Raises UsageError if it cannot be generated."""
    from iotwin.datagen.layout_from_yaml import layout_of, train_files
    from iotwin.datagen.layouts import BertLayout, DlrmLayout, Unet3dLayout

    dataset = config.dataset
    files = train_files(dataset)
    if config.twin.layout == "unet3d":
        scale = ((dataset.record_length_bytes or _CASE_BYTES) / _CASE_BYTES) ** (1 / 3)
        return Unet3dLayout(scale=round(scale, 3)), _cases(files, dataset.num_files_eval or 0)
    if config.twin.layout == "bert":
        return BertLayout(), files * dataset.num_samples_per_file
    if config.twin.layout == "dlrm":
        return DlrmLayout(), dataset.num_samples_per_file
    return layout_of(dataset), files * dataset.num_samples_per_file


def _cases(train: int, evaluation: int) -> int:
    """Return the fewest cases of a data set of which at least `train` are for training and `evaluation` for evaluation."""
    from iotwin.datagen.layouts import Unet3dLayout

    every = Unet3dLayout.EVALUATION_EVERY
    return max(train + math.ceil(train / (every - 1)), (evaluation - 1) * every + 1 if evaluation else 0)


def trace_itself(words: list[str], config: "Config") -> dict[str, Any]:
    """Run ``iotwin emulate`` with the arguments `words` under the tracer. Return its summary, with the path of the trace."""
    from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_command

    folder = Path(config.output.folder)
    make_folder(folder)
    command = own_command("emulate", *words, "++workload.workflow.profiling=false")
    options = TraceOptions(workload=config.model.name, force=True, forward_output=False)
    manifest = trace_command(command, folder / "trace", options)
    if manifest.exit_status:
        lines = read_foreign_end(folder / "trace" / "logs" / "stderr").strip().splitlines()
        reason = lines[-1].removeprefix("iotwin emulate: ") if lines else f"it ended with status {manifest.exit_status}"
        raise IotwinError(f"the traced run failed: {reason}")
    summary: dict[str, Any] = read_foreign_json(folder / "summary.json")
    return {**summary, "output": str(folder), "trace": str(folder / "trace")}
