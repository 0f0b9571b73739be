"""Write the summary of a replay: DLIO's keys that apply to it, and iotwin's keys under ``iotwin``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.journal import run_span
from iotwin.benchmark.emulator.recorded.replay_rank import Replayed, lateness
from iotwin.benchmark.emulator.results.dlio_text_files import local_time
from iotwin.benchmark.emulator.results.run_files import SUMMARY_NAME, clock_document, machine_document, resumed_document
from iotwin.benchmark.emulator.results.training import training_document
from iotwin.benchmark.emulator.virtual_clock import write_jumps
from iotwin.common.files import struct_json, write_whole
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.rematerialized import facts


def write_replayed(config: Config, ranks: Sequence[Replayed]) -> dict[str, Any]:
    """Write the summary of the replays of all ranks to summary.json in the output folder, and return it."""
    summary = _summary(config, ranks)
    if (clock := waits.virtual_clock()) is not None:
        write_jumps(clock, Path(config.output.folder))
    write_whole(Path(config.output.folder) / SUMMARY_NAME, struct_json(summary))
    return summary


def _summary(config: Config, ranks: Sequence[Replayed]) -> dict[str, Any]:
    first, span = ranks[0], run_span(ranks)
    read, storage = sum(one.read_bytes for one in ranks), sum(one.storage_read_bytes for one in ranks)
    return {
        "start": local_time(span.start_s), "end": local_time(span.end_s), "num_accelerators": len(ranks), "num_hosts": 1,
        "hostname": first.host.hostname, "host_cpu_count": [first.host.cpus],
        "host_memory_GB": [first.host.memory_bytes / (1 << 30)], "metric": {},
        "machine": machine_document(ranks, sum(each.steps for one in ranks for each in one.passes)),
        "iotwin": {
            "kernel": first.host.kernel, "machine": first.host.machine, "elapsed_s": span.end_s - span.start_s,
            "clock": clock_document(waits.virtual_clock(), span),
            "stopped_early": any(one.stopped_early for one in ranks), "bytes_read": read,
            "bytes_written": sum(one.written_bytes for one in ranks), "storage_bytes_read": storage,
            "page_cache_hit_ratio": None if not read else max(0.0, 1.0 - storage / read),
            "cpu_s": sum(one.cpu_s for one in ranks), "peak_memory_bytes": max(one.peak_memory_bytes for one in ranks),
            "training": _training(config, ranks),
            "train": None, "evaluation": None, "checkpoint_files": [],
            "rematerialization": facts(config.train.computation_time), "resumed": resumed_document(ranks),
            "recorded": {
                "calls": {name: sum(one.counts[name] for one in ranks) for name in first.counts if first.counts[name]},
                "timing_error": lateness(np.sum([one.late for one in ranks], axis=0)),
                "waits_given_up": sum(one.freed_waits for one in ranks),
                "data_wait_s": _mean([one.data_wait_s for one in ranks]),
            },
        },
    }  # fmt: skip


def _training(config: Config, ranks: Sequence[Replayed]) -> dict[str, Any] | None:
    """Return the figures of training, with `samples_per_second` over whole epochs (None if samples or epochs are unknown)."""
    found = training_document([each for one in ranks for each in one.passes])
    samples = config.dataset.num_files_train if ranks[0].knows_samples else None
    if found is not None:
        found["samples_per_second"] = samples and samples * len(found["epoch_s"]) / sum(found["epoch_s"])
    return found


def _mean(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) / len(known) if known else None
