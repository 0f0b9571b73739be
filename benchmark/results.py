"""The files a run leaves in its output folder: summary.json with DLIO's names, metrics.parquet with a row per step."""

import os
import platform
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmark.config import Config
from benchmark.emulator import Measured
from benchmark.metrics import checkpoint_metrics, phase_metrics, step_quantiles
from tracing_tools.trace.errors import IotwinError

SUMMARY_NAME = "summary.json"
METRICS_NAME = "metrics.parquet"


def prepare_output(folder: Path) -> None:
    """Make the output folder and see that it can be written to, before a long run needs it; IotwinError when it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IotwinError(f"{folder}: cannot be made: {error.strerror}; change output.folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IotwinError(f"{folder}: cannot be written to; change output.folder or its permissions")


def write_results(config: Config, measured: Measured) -> dict[str, Any]:
    """Write both files into the workload's output folder, each whole or not at all, and return the summary."""
    folder = Path(config.output.folder)
    summary = summarize(config, measured)
    measured.steps.write_parquet(folder / METRICS_NAME)
    temporary = folder / (SUMMARY_NAME + ".partial")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
        temporary.replace(folder / SUMMARY_NAME)
    finally:
        temporary.unlink(missing_ok=True)
    return summary


def summarize(config: Config, measured: Measured) -> dict[str, Any]:
    """Return the summary of a run: DLIO's keys, then ours under ``iotwin``; see docs/emulate.md."""
    train = measured.steps.columns("train")
    evaluation = measured.steps.columns("evaluation")
    metric = phase_metrics("train", train)
    reached = metric["train_au_mean_percentage"]
    met = None if reached is None else ("success" if reached >= 100 * config.metric.au else "fail")
    metric["train_au_meet_expectation"] = met
    if len(evaluation["step"]):
        metric |= phase_metrics("eval", evaluation)
    if measured.checkpoints:
        metric |= checkpoint_metrics(measured.checkpoints)
    samples_bytes = measured.dataset.train.size_bytes + measured.dataset.evaluation.size_bytes
    return {
        "start": _local_time(measured.start_s),
        "end": _local_time(measured.end_s),
        "num_accelerators": 1,
        "num_hosts": 1,
        "hostname": socket.gethostname(),
        "num_files_train": len(measured.dataset.train.files),
        "num_files_eval": len(measured.dataset.evaluation.files),
        "num_samples_per_file": config.dataset.num_samples_per_file,
        "host_cpu_count": [os.cpu_count()],
        "host_memory_GB": [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)],
        "data_size_per_host_GB": samples_bytes / (1 << 30),
        "epochs": config.train.epochs,
        "metric": metric,
        "iotwin": _own(config, measured),
    }


def _own(config: Config, measured: Measured) -> dict[str, Any]:
    """What DLIO does not report: bytes really read, quantiles instead of means, every checkpoint file, and the machine."""
    columns = measured.steps.columns()
    train = measured.steps.columns("train")
    evaluation = measured.steps.columns("evaluation")
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "elapsed_s": measured.end_s - measured.start_s,
        "steps": len(train["step"]),
        "evaluation_steps": len(evaluation["step"]),
        "bytes_read": int(columns["bytes_read"].sum()),
        "bytes_written": sum(file.size_bytes for file in measured.checkpoints),
        "train": step_quantiles(train),
        "evaluation": step_quantiles(evaluation) if len(evaluation["step"]) else None,
        "checkpoint_files": [
            {"epoch": file.epoch, "name": file.name, "size_bytes": file.size_bytes, "duration_s": file.duration_ns / 1e9}
            for file in measured.checkpoints
        ],
        "source": config.twin.source,
    }


def _local_time(seconds: float) -> str:
    """DLIO's time stamp: local time to the microsecond, without a zone."""
    return datetime.fromtimestamp(seconds, tz=datetime.now().astimezone().tzinfo).strftime("%Y-%m-%dT%H:%M:%S.%f")
