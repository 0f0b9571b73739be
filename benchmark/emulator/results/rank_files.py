"""DLIO's two files for each rank: the times of every step, and of every epoch, block, evaluation and checkpoint."""

from typing import Any

from iotwin.benchmark.emulator.journal import Ints, Measured, Span
from iotwin.benchmark.emulator.results.dlio_log import local_time
from iotwin.benchmark.emulator.results.step_table import StepTable
from iotwin.benchmark.emulator.results.utilisation import accelerator_utilisation
from iotwin.workload_yaml import Config


def rank_output(config: Config, measured: Measured, host_facts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return the content of N_output.json: lists of each step's seconds, and the utilisation and throughput, by epoch and block.

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
    own = StepTable([measured.steps])
    for span in measured.spans:
        if span.kind == "epoch":
            document[str(span.epoch)] = _epoch(config, own, span) | {"host_meminfo": host_facts["host_meminfo"]}
    return document


def _epoch(config: Config, table: StepTable, span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {key: {} for key in ("load", "proc", "compute", "au", "throughput")}
    parts = {"load": "data_wait_ns", "proc": "step_ns", "compute": "compute_ns"}
    train = table.of("train", span.epoch)
    for block in sorted(set(train["block"].tolist())):
        rows = train["block"] == block
        for key, column in parts.items():
            found[key][f"block{block}"] = (train[column][rows] / 1e9).tolist()
        found["au"][f"block{block}"], found["throughput"][f"block{block}"] = _block_rates(config, train, rows)
    evaluation = table.of("evaluation", span.epoch)
    if len(evaluation["step"]):
        for key, column in parts.items():
            found[key]["eval"] = (evaluation[column] / 1e9).tolist()
    return found | {"end": local_time(span.end_s)}


def _block_rates(config: Config, train: dict[str, Ints], rows: Any) -> tuple[float | None, float]:
    """Return (accelerator utilisation in percent, samples per second) of one rank over the steps `rows`, a block."""
    block = {name: column[rows] for name, column in train.items()}
    rate = float(block["samples"].sum()) / (float(block["step_ns"].sum()) / 1e9)
    return accelerator_utilisation(block, config.output.metric), rate


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
            # The duration of an asynchronous checkpoint is that of its snapshot. The summary has the files that it wrote later.
            rate = span.amount / (1 << 30) / span.duration_s if span.amount else None
            epoch[f"{span.kind}{span.number}"] = times | {"duration": span.duration_s, "throughput": rate}
        else:
            name = "eval" if span.kind == "eval" and span.number == 1 else f"{span.kind}{span.number}"
            epoch[name] = times | {"duration": f"{span.duration_s:.2f}"}
    return document
