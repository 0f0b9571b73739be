"""Write a run's output files: DLIO's summary, log and files of each rank, and metrics.parquet with one row per step."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.journal import PHASES, Measured, RankTotals, ResumedRun, RunSpan, run_span
from iotwin.benchmark.emulator.results.dlio_text_files import epoch_stats, local_time, log_lines, rank_output
from iotwin.benchmark.emulator.results.metrics import checkpoint_metrics, estimates, phase_metrics, step_quantiles
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.benchmark.emulator.results.training import passes_of, training_document
from iotwin.benchmark.emulator.virtual_clock import VirtualClock, write_jumps
from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder, struct_json, write_whole
from iotwin.common.removal import remove_file
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.rematerialized import facts
from iotwin.workloads.policies.checkpoint_frequency import Decided

SUMMARY_NAME = "summary.json"
METRICS_NAME = "metrics.parquet"
_CLOCK_NOTE = (
    "write-back, burst credits and garbage collection of the storage happened in real time, which had fewer idle moments"
)


def prepare_output(folder: Path, notes: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create the output folder before a run, and write the texts `notes` by file name. Raises IotwinError if that fails."""
    try:
        make_folder(folder)
    except OSError as error:
        raise IotwinError(f"{folder}: cannot be made: {error.strerror}; change output.folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IotwinError(f"{folder}: cannot be written to; change output.folder or its permissions")
    for name, text in notes.items():
        write_whole(folder / name, text.encode(), below=folder)


def write_results(config: Config, ranks: Sequence[Measured], table: StepTable) -> dict[str, Any]:
    """Write the measurements of all ranks to the workload's output folder, all files or none, and return the summary.

    `table`: the steps of all ranks.
    """
    folder = Path(config.output.folder)
    summary = summarize(config, ranks, table)
    written: list[Path] = []
    try:
        for name, content in _files(config, ranks, table, summary):
            write_whole(folder / name, content)
            written.append(folder / name)
        if (clock := waits.virtual_clock()) is not None:
            write_jumps(clock, folder)
        table.write_parquet(folder / METRICS_NAME)
    except BaseException:
        for path in written:
            with suppress(OSError):
                remove_file(path)
        raise
    return summary


def _files(config: Config, ranks: Sequence[Measured], table: StepTable, summary: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of the files but the table of steps, one at a time."""
    host_facts = _host_facts()
    for measured in ranks:
        output = rank_output(config, measured, table.of_rank(measured.rank), host_facts)
        yield f"{measured.rank}_output.json", struct_json(output)
        yield f"{measured.rank}_per_epoch_stats.json", struct_json(epoch_stats(measured))
    yield config.output.log_file, "".join(log_lines(config, ranks, table, summary)).encode()
    yield SUMMARY_NAME, struct_json(summary)


def summarize(config: Config, ranks: Sequence[Measured], table: StepTable) -> dict[str, Any]:
    """Return the summary of a run: DLIO's keys, and iotwin's keys under ``iotwin`` (see docs/emulate.md)."""
    first = ranks[0]
    metric: dict[str, Any] = {}
    steps = {phase: sum(map(len, table.column(phase, "step"))) for phase in PHASES}
    for phase in PHASES:
        if (phase == "train" and config.workflow.train) or steps[phase]:
            metric |= phase_metrics(table, phase, config.output.metric)
    if "train_au_mean_percentage" in metric:
        reached = metric["train_au_mean_percentage"]
        met = None if reached is None else ("success" if reached >= 100 * config.metric.au else "fail")
        metric["train_au_meet_expectation"] = met
    for kind, files in (("save", [one.saved for one in ranks]), ("load", [one.loaded for one in ranks])):
        if any(files):
            metric |= checkpoint_metrics(kind, files)
    hosts = {measured.node: measured.host for measured in ranks}
    return {
        "start": local_time(min(measured.start_s for measured in ranks)),
        "end": local_time(max(measured.end_s for measured in ranks)),
        "model": config.model.name,  # report.py of MLPerf Storage v0.5 and v1.0 requires it
        "num_accelerators": len(ranks),
        "num_hosts": first.nodes,
        "hostname": first.host.hostname,
        "num_files_train": first.data.train_files,
        "num_files_eval": first.data.evaluation_files,
        "num_samples_per_file": config.dataset.num_samples_per_file,
        "host_cpu_count": [host.cpus for host in hosts.values()],
        "host_memory_GB": [host.memory_bytes / (1 << 30) for host in hosts.values()],
        "potential_caching": [first.data.size_bytes / first.nodes <= host.memory_bytes for host in hosts.values()],
        "data_size_per_host_GB": first.data.size_bytes / first.nodes / (1 << 30),
        "epochs": config.train.epochs,
        "metric": metric,
        "machine": machine_document(ranks, sum(steps.values())),
        "iotwin": _own(config, ranks, table, steps),
    }


def machine_document(ranks: Sequence[RankTotals], steps: int) -> dict[str, Any]:
    """Return the memory and CPU time that a rank used, as means over `ranks`. `steps`: number of steps of all ranks together.

    `memory_bytes`: a rank's share of memory at its end (PSS). `compensated_s`: seconds by which a rank's sleeps were shortened,
    to make up for the emulator's own work.
    """
    count, memory = len(ranks), [one.memory_bytes for one in ranks if one.memory_bytes]
    run_cpu_s = sum(one.run_cpu_s for one in ranks)
    return {
        "cpus": ranks[0].host.cpus,
        "ranks": {
            "count": count,
            "memory_bytes": round(sum(memory) / len(memory)) if memory else None,
            "cpu_s": sum(one.cpu_s for one in ranks) / count,
            "cpu_s_per_step": run_cpu_s / steps if steps else None,
            "compensated_s": sum(one.compensated_s for one in ranks) / count,
        },
    }


def clock_document(clock: VirtualClock | None, span: RunSpan) -> dict[str, Any]:
    """Return the summary's {"kind", "real_s", "virtual_s", "jumps", "note"} of a run. `clock`: None if its time was real."""
    virtual_s = span.end_s - span.start_s
    return {
        "kind": "real" if clock is None else "virtual",
        "real_s": virtual_s - span.skipped_s,
        "virtual_s": virtual_s,
        "jumps": 0 if clock is None else clock.figures().jumps,
        "note": None if clock is None else _CLOCK_NOTE,
    }


def _own(config: Config, ranks: Sequence[Measured], table: StepTable, steps: Mapping[str, int]) -> dict[str, Any]:
    """Return the results that DLIO does not report: bytes read, quantiles, intervals, checkpoint files, and the machine.

    `steps`: number of steps of all ranks together, by phase.
    """
    first = ranks[0]
    span = run_span(ranks)
    bytes_read = sum(int(part.sum()) for phase in PHASES for part in table.column(phase, "bytes_read"))
    storage_bytes = sum(measured.storage_read_bytes for measured in ranks)
    loaded_bytes = sum(file.size_bytes for measured in ranks for file in measured.loaded)
    return {
        "kernel": first.host.kernel,
        "machine": first.host.machine,
        "elapsed_s": span.end_s - span.start_s,
        "clock": clock_document(waits.virtual_clock(), span),
        "stopped_early": first.stopped_early,
        "steps": steps["train"] // len(ranks),
        "evaluation_steps": steps["evaluation"] // len(ranks),
        "bytes_read": bytes_read,
        "bytes_written": sum(file.size_bytes for measured in ranks for file in measured.saved),
        "storage_bytes_read": storage_bytes,
        "page_cache_hit_ratio": _hit_ratio(storage_bytes, bytes_read + loaded_bytes),
        "cpu_s": sum(measured.cpu_s for measured in ranks),
        "peak_memory_bytes": max(measured.peak_memory_bytes for measured in ranks),
        "estimates": {phase: estimates(table, phase, config.output.metric) for phase in PHASES if steps[phase]},
        "training": training_document(list(passes_of(table, _saving_ns(ranks)))),
        **{phase: step_quantiles(table, phase) if steps[phase] else None for phase in PHASES},
        "checkpoint_files": [
            {
                "rank": measured.rank,
                "epoch": file.epoch,
                "name": file.name,
                "size_bytes": file.size_bytes,
                "duration_s": file.duration_ns / 1e9,
            }
            for measured in ranks
            for file in measured.saved
        ],
        "checkpoint_policy": _policy(config, first.decided),
        "rematerialization": facts(config.train.computation_time),
        "resumed": resumed_document(ranks),
    }


def _saving_ns(ranks: Sequence[Measured]) -> Counter[tuple[int, int]]:
    """Return the time for which checkpoints interrupted training, in ns by (rank, epoch)."""
    found = Counter[tuple[int, int]]()
    for index, measured in enumerate(ranks):
        for span in measured.spans:
            if span.kind == "save_ckpt":
                found[index, span.epoch] += int(span.duration_s * 1e9)
    return found


def _policy(config: Config, decided: Decided | None) -> dict[str, Any] | None:
    """Return the decisions of the checkpoint policy, and the useful steps per second by its MTBF; None without decisions."""
    policy = config.twin.checkpoint.policy
    if policy is None or decided is None:
        return None
    return {
        "type": policy.type,
        "overhead": policy.overhead,
        "interval": decided.intervals[-1][1],
        "intervals": [list(each) for each in decided.intervals],
        "step_s": decided.step_s,
        "stall_s": decided.stall_s,
        "write_s": decided.write_s,
        "goodput_steps_per_s": None if policy.mtbf is None else decided.goodput_steps_per_s(policy.mtbf),
    }


def resumed_document(ranks: Sequence[RankTotals]) -> dict[str, Any] | None:
    """Return the step at which the run resumed, and the samples and bytes skipped and read before it; None for other runs."""
    resumed = [measured.resumed for measured in ranks if measured.resumed is not None]
    if not resumed:
        return None
    amounts = {name: sum(getattr(one, name) for one in resumed) for name in ResumedRun._fields[3:]}
    return {"mode": resumed[0].mode, "epoch": resumed[0].epoch, "step": resumed[0].step, **amounts}


def _hit_ratio(storage_bytes: int, read_bytes: int) -> float | None:
    """Return the share of the bytes read that came from the page cache, at least 0, since read-ahead may fetch more."""
    return None if not read_bytes else max(0.0, 1.0 - storage_bytes / read_bytes)


def _host_facts() -> dict[str, dict[str, str]]:
    """Return the first entry of /proc/cpuinfo and /proc/meminfo as mappings."""
    facts = {}
    for key, path in (("host_cpuinfo", "/proc/cpuinfo"), ("host_meminfo", "/proc/meminfo")):
        text = Path(path).read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        facts[key] = {name.strip(): value.strip() for name, _, value in pairs}
    return facts
