"""Compose DLIO's text files: the log that scripts parse, and two files for each rank with the times of steps and phases.

With --instrument, the log has a line for every part of every step.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from iotwin.benchmark.emulator.journal import PHASES, Measured, Span
from iotwin.benchmark.emulator.results.step_table import (
    StepColumns,
    StepTable,
    accelerator_utilisation,
    block_sums,
    counted_steps,
    where,
)
from iotwin.workload_yaml import Config


def local_time(seconds: float) -> str:
    """Return UNIX time as DLIO's time stamp: local time with microseconds, without a zone."""
    return datetime.fromtimestamp(seconds, tz=datetime.now().astimezone().tzinfo).strftime("%Y-%m-%dT%H:%M:%S.%f")


def log_lines(config: Config, ranks: Sequence[Measured], table: StepTable, summary: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the log by the measurements of rank 0. With --instrument, lines ``[INFO] key nanoseconds`` follow."""
    first = ranks[0]
    what = " & ".join(
        name for name, done in (("Training", config.workflow.train), ("Checkpointing", config.workflow.checkpoint)) if done
    )
    yield _line(first.start_s, f"Running DLIO [{what}] with {len(ranks)} process(es)")
    files, each = first.data.train_files, config.dataset.num_samples_per_file
    size = config.reader.batch_size
    steps = max((int(span.amount) for span in first.spans if span.kind == "epoch"), default=0)
    if steps:
        yield _line(
            first.start_s,
            f"Max steps per epoch: {steps} = {each} * {files} / {size} / {len(ranks)} "
            "(samples per file * num files / batch size / comm size)",
        )
    edges = [(span.start_s, 1, span) for span in first.spans] + [(span.end_s, 0, span) for span in first.spans]
    counted = block_sums(table, "train", config.output.metric)
    for time_s, starts, span in sorted(edges, key=lambda edge: (edge[0], edge[1] == (edge[2].kind == "epoch"))):
        yield _line(time_s, (_start if starts else _end)(span))
        if not starts and span.kind == "block":
            yield from _block(config, where(counted, epoch=span.epoch, block=span.number), span)
    for name, value in summary["metric"].items():
        if isinstance(value, float | str):
            yield _line(first.end_s, f"[METRIC] {name}: {value:.4f}" if isinstance(value, float) else f"[METRIC] {name}: {value}")
    if first.instrumented:
        yield from _parts_of_steps(first, where(table.of_rank(0), phase=PHASES.index("train")))


def generation_lines(processes: int, start_s: float, end_s: float) -> Iterator[str]:
    """Yield the lines of the log of a run that only generates a data set. Times are UNIX seconds."""
    yield _line(start_s, f"Running DLIO [Generating data] with {processes} process(es)")
    yield _line(start_s, "Starting data generation")
    yield _line(end_s, "Generation done")


def _line(time_s: float, text: str) -> str:
    return f"[OUTPUT] {local_time(time_s)} {text}\n"


def _start(span: Span) -> str:
    return {
        "epoch": f"Starting epoch {span.epoch}: {int(span.amount)} steps expected",
        "block": f"Starting block {span.number}",
        "eval": f"Starting eval - {int(span.amount)} steps expected",
        "save_ckpt": f"Starting saving checkpoint {span.number} after epoch {span.epoch}",
        "load_ckpt": f"Starting loading checkpoint {span.number} for epoch {span.epoch}",
    }[span.kind]


def _end(span: Span) -> str:
    rate = f"Throughput: {span.amount / (1 << 30) / max(span.duration_s, 1e-9):.4f} GB/s"
    if span.kind == "save_ckpt" and not span.amount:
        rate = "to be written during training"  # the span of an asynchronous checkpoint covers only its snapshot
    return {
        "epoch": f"Ending epoch {span.epoch} - {int(span.amount)} steps completed in {span.duration_s:.2f} s",
        "block": f"Ending block {span.number} - {int(span.amount)} steps completed in {span.duration_s:.2f} s",
        "eval": f"Ending eval - {int(span.amount)} steps completed in {span.duration_s:.2f} s",
        "save_ckpt": f"Finished saving checkpoint {span.number} for epoch {span.epoch} in {span.duration_s:.4f} s; {rate}",
        "load_ckpt": f"Finished loading checkpoint {span.number} for epoch {span.epoch} in {span.duration_s:.4f} s; {rate}",
    }[span.kind]


def _block(config: Config, counted: StepColumns, span: Span) -> Iterator[str]:
    steps, compute_ns, elapsed_ns, samples, square_s2 = (
        counted[name].sum() for name in ("steps", "compute_ns", "step_ns", "samples", "square_s2")
    )
    head = f"Epoch {span.epoch} - Block {span.number} [Training]"
    if elapsed_ns:
        mean_s = compute_ns / 1e9 / steps
        deviation_s = math.sqrt(max(0.0, square_s2 / steps - mean_s**2))
        yield _line(span.end_s, f"{head} Accelerator Utilization [AU] (%): {accelerator_utilisation(counted):.4f}")
        yield _line(span.end_s, f"{head} Throughput (samples/second): {samples / (elapsed_ns / 1e9):.4f}")
        yield _line(
            span.end_s,
            f"{head} Computation time per step (second): {mean_s:.4f}+/-{deviation_s:.4f} "
            f"(set value: {config.train.computation_time})",
        )


def _parts_of_steps(measured: Measured, columns: StepColumns) -> Iterator[str]:
    """Yield, for each training step, the lines of the paper artifact's instrumentation, with nanoseconds of each part.

    Reading and preprocessing have a line for each sample, or for the batch if the loader reads whole batches. load_batch_gpu is
    the copy into page-locked memory, if there is one. The wait for the batch is logged without that copy.
    """
    names = ("read_ns", "preprocess_ns", "data_wait_ns", "compute_ns", "step_ns")
    steps = zip(*(columns[name].tolist() for name in names), strict=True)
    for (read_ns, preprocess_ns, wait_ns, compute_ns, step_ns), (samples, copy_ns) in zip(
        steps, measured.instrumented, strict=True
    ):
        parts = [part for sample in samples for part in zip(("sample_load", "sample_preproc"), sample, strict=True)]
        if not samples:
            parts += [("batch_load", read_ns), ("batch_preproc", preprocess_ns)]
        loaded_ns = wait_ns - (copy_ns or 0)
        parts += [("load_batch_inner", loaded_ns), ("load_batch_mem", loaded_ns)]
        if copy_ns is not None:
            parts.append(("load_batch_gpu", copy_ns))
        parts += [("all_compute", compute_ns), ("step_end", step_ns)]
        yield "".join(f"[INFO] {key} {value}\n" for key, value in parts)


def rank_output(
    config: Config, measured: Measured, columns: StepColumns, host_facts: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Return the content of N_output.json: lists of each step's seconds, and the utilisation and throughput, by epoch and block.

    `columns`: the rank's steps.
    `load` is the wait for the batch, `proc` the whole step, and `compute` the configured computation time. Blocks have the keys
    that readers of DLIO's files expect.
    """
    document: dict[str, Any] = {
        "hostname": measured.host.hostname,
        "host_memory_GB": measured.host.memory_bytes / (1 << 30),
        "host_cpu_count": measured.host.cpus,
        **host_facts,
        "potential_caching": measured.data.size_bytes / measured.nodes <= measured.host.memory_bytes,
    }
    for span in measured.spans:
        if span.kind == "epoch":
            document[str(span.epoch)] = _epoch(config, where(columns, epoch=span.epoch), span) | {
                "host_meminfo": host_facts["host_meminfo"]
            }
    return document


def _epoch(config: Config, columns: StepColumns, span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {key: {} for key in ("load", "proc", "compute", "au", "throughput")}
    parts = {"load": "data_wait_ns", "proc": "step_ns", "compute": "compute_ns"}
    train, evaluation = (where(columns, phase=code) for code in range(len(PHASES)))
    for block in sorted(set(train["block"].tolist())):
        rows = where(train, block=block)
        for key, column in parts.items():
            found[key][f"block{block}"] = (rows[column] / 1e9).tolist()
        found["au"][f"block{block}"] = accelerator_utilisation(counted_steps(rows, config.output.metric))
        found["throughput"][f"block{block}"] = float(rows["samples"].sum()) / (float(rows["step_ns"].sum()) / 1e9)
    if len(evaluation["step"]):
        for key, column in parts.items():
            found[key]["eval"] = (evaluation[column] / 1e9).tolist()
    return found | {"end": local_time(span.end_s)}


def epoch_stats(measured: Measured) -> dict[str, Any]:
    """Return the content of N_per_epoch_stats.json: start, end and duration of all phases, by epoch.

    The throughput of checkpoints is in GiB/s.
    """
    document: dict[str, dict[str, Any]] = {}
    for span in sorted(measured.spans, key=lambda span: (span.epoch, span.start_s)):
        epoch = document.setdefault(str(span.epoch), {})
        times: dict[str, Any] = {"start": local_time(span.start_s), "end": local_time(span.end_s)}
        if span.kind == "epoch":
            epoch |= times | {"duration": f"{span.duration_s:.2f}"}
        elif span.kind in ("save_ckpt", "load_ckpt"):
            # The span of an asynchronous checkpoint covers only its snapshot. The summary has the files written afterwards.
            rate = span.amount / (1 << 30) / span.duration_s if span.amount else None
            epoch[f"{span.kind}{span.number}"] = times | {"duration": span.duration_s, "throughput": rate}
        else:
            name = "eval" if span.kind == "eval" and span.number == 1 else f"{span.kind}{span.number}"
            epoch[name] = times | {"duration": f"{span.duration_s:.2f}"}
    return document
