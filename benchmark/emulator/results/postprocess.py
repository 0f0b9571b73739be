"""DLIO's postprocessor, which summarises the files of a run in a text report.

    dlio_postprocessor --output-folder=OUTPUT

Figures are defined as in DLIO: the mean over ranks of the seconds that steps waited and took, and the samples per second of each
step, over all ranks together.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.files import write_whole
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workload_yaml.yaml_file import read

_STATISTICS = ("mean", "std", "min", "median", "p90", "p99", "max")
_MOST_JSON_BYTES = 1 << 28  # limit for a run's file, which has a few numbers for each step
_MEBIBYTE = 1 << 20
_SECTIONS = ("model", "dataset", "reader", "train")  # that the report reads
_DISK = {"rMB/s": "R MB/s", "wMB/s": "W MB/s", "r/s": "R IOPS", "w/s": "W IOPS", "r_await": "Avg R Time (ms)",
         "w_await": "Avg W Time (ms)", "aqu-sz": "Avg Queue Length"}  # fmt: skip
_CPU = {"user": "User (%)", "system": "System (%)", "iowait": "IO Wait (%)", "steal": "Steal (%)", "idle": "Idle (%)"}


def statistics(values: NDArray[np.float64]) -> dict[str, str]:
    """Return mean, standard deviation and quantiles with two decimals; "n/a" if there are fewer than two values."""
    if len(values) < 2:
        return dict.fromkeys(_STATISTICS, "n/a")
    low, median, p90, p99, high = np.percentile(values, (0, 50, 90, 99, 100))
    found = (values.mean(), values.std(ddof=1), low, median, p90, p99, high)
    return {name: f"{value:.2f}" for name, value in zip(_STATISTICS, found, strict=True)}


def overall(folder: Path, ranks: int, epochs: int, record_bytes: float) -> dict[str, Any]:
    """Return the figures of the whole run from the files in `folder`. Raises IotwinError if a file is missing."""
    summary = _json(folder / "summary.json")
    rates = np.array(summary["metric"]["train_throughput_samples_per_second"], np.float64)
    times = [_rank_times(folder, rank, epochs) for rank in range(ranks)]
    seconds = {
        part: sum(float(np.sum(values)) for one in times for epoch in one.values() for values in epoch[part].values()) / ranks
        for part in ("load", "proc")
    }
    return {
        "samples/s": statistics(rates),
        "MB/s": statistics(rates * record_bytes / _MEBIBYTE),
        "avg_process_loading_time": f"{seconds['load']:.2f}",
        "avg_process_processing_time": f"{seconds['proc']:.2f}",
    }


def _rank_times(folder: Path, rank: int, epochs: int) -> dict[str, Any]:
    document = _json(folder / f"{rank}_output.json")
    return {str(epoch): document[str(epoch)] for epoch in range(1, epochs + 1) if str(epoch) in document}


def _json(path: Path) -> Any:
    try:
        return read_foreign_json(path, _MOST_JSON_BYTES)
    except OSError:
        raise IotwinError(f"{path}: no such file; give the output folder of a run as --output-folder") from None


def report(folder: Path, workload: dict[str, Any]) -> str:
    """Return the report of the run in `folder`, whose composed workload is `workload`."""
    ranks = len(list(folder.glob("*_output.json")))
    if not ranks:
        raise IotwinError(f"{folder}: holds no N_output.json; give the output folder of a run as --output-folder")
    dataset, reader = workload["dataset"], workload["reader"]
    epochs, record_bytes = workload["train"]["epochs"], float(dataset.get("record_length_bytes") or dataset["record_length"])
    figures = overall(folder, ranks, epochs, record_bytes)
    summary = _json(folder / "summary.json")
    name = folder / "0_per_epoch_stats.json"
    spans = _json(name if name.exists() else folder / "per_epoch_stats.json")
    facts = {
        "Run name": workload["model"]["name"],
        "Started": summary["start"],
        "Ended": summary["end"],
        "Num Ranks": ranks,
        "Batch size (per rank)": reader["batch_size"],
        "Eval batch size": reader["batch_size_eval"],
        "Avg loading time / rank (s)": figures["avg_process_loading_time"],
        "Avg processing time / rank (s)": figures["avg_process_processing_time"],
    }
    lines = ["DLIO v1.0 Report", "", "Overall", "", *_facts(facts, 1), "", *_table(figures, ("samples/s", "MB/s"), 1)]
    lines += [*_machine(folder), "", "Detailed Report", ""]
    times = [_rank_times(folder, rank, epochs) for rank in range(ranks)]
    sizes = reader["batch_size"], reader["batch_size_eval"]
    for epoch, phases in spans.items():
        lines += [f"Epoch {epoch}", *_facts({key: phases[key] for key in ("start", "end", "duration") if key in phases}, 1)]
        for phase, span in phases.items():
            if isinstance(span, dict):
                lines += ["", f"    {phase}", *_facts(span, 2), *_phase(times, epoch, phase, sizes, record_bytes)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _phase(times: list[dict[str, Any]], epoch: str, phase: str, sizes: tuple[int, int], record_bytes: float) -> Iterator[str]:
    """Yield the lines of a block or an evaluation. A checkpoint, which has no steps, yields none."""
    steps = [one[epoch]["proc"][phase] for one in times if phase in one.get(epoch, {}).get("proc", {})]
    if not steps:
        return
    loads = [one[epoch]["load"][phase] for one in times if epoch in one]
    fewest = min(map(len, steps))
    size = sizes[1] if phase.startswith("eval") else sizes[0]
    rates = np.sum([size / np.array(one[:fewest], np.float64) for one in steps], axis=0)
    yield from _facts(
        {
            "Avg loading time / rank (s)": f"{sum(map(sum, loads)) / len(times):.2f}",
            "Avg processing time / rank (s)": f"{sum(map(sum, steps)) / len(times):.2f}",
        },
        2,
    )
    found = {"samples/s": statistics(rates), "MB/s": statistics(rates * record_bytes / _MEBIBYTE)}
    yield from _table(found, tuple(found), 2)


def _machine(folder: Path) -> Iterator[str]:
    """Yield iostat's figures of disks and processors, if it ran."""
    path = folder / "iostat.json"
    if not path.exists():
        return
    samples = _json(path)["sysstat"]["hosts"][0]["statistics"]
    for disk in sorted({disk["disk_device"] for sample in samples for disk in sample["disk"]}):
        rows = [one for sample in samples for one in sample["disk"] if one["disk_device"] == disk]
        found = {title: statistics(np.array([row[key] for row in rows], np.float64)) for key, title in _DISK.items()}
        yield from ("", f"    Device: {disk}", *_table(found, tuple(found), 1))
    found = {
        title: statistics(np.array([sample["avg-cpu"][key] for sample in samples], np.float64)) for key, title in _CPU.items()
    }
    yield from ("", "    CPU Stats", *_table(found, tuple(found), 1))


def _facts(facts: dict[str, Any], depth: int) -> Iterator[str]:
    for name, value in facts.items():
        yield f"{'    ' * depth}{name + ':':34}{value}"


def _table(figures: dict[str, Any], names: tuple[str, ...], depth: int) -> Iterator[str]:
    yield f"{'    ' * depth}{'':20}" + "".join(f"{name:>12}" for name in _STATISTICS)
    for name in names:
        yield f"{'    ' * depth}{name:20}" + "".join(f"{figures[name][key]:>12}" for key in _STATISTICS)


def _composed(folder: Path, notes: str) -> dict[str, Any]:
    """Return the composed workload in the folder `notes` of a run's output. Raises IotwinError if there is none."""
    path = folder / notes / "config.yaml"
    if not path.is_file():
        others = [other.parent.name for other in sorted(folder.glob("*/config.yaml"))]
        remedy = f"--hydra-folder={others[0]}" if others else "a run of dlio_benchmark as --output-folder"
        raise IotwinError(f"{path}: no such file; give {remedy}")
    workload = read(path)[0].get("workload")
    if not isinstance(workload, dict) or any(not isinstance(workload.get(key), dict) for key in _SECTIONS):
        raise IotwinError(f"{path}: has no workload with {', '.join(_SECTIONS)}; it is none that dlio_benchmark left")
    return workload


def main() -> int:
    """Write DLIO_<model>_report.txt into the output folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="dlio_postprocessor", description="Sum up the files of a run in a text.")
    parser.add_argument("-of", "--output-folder", type=Path, default=Path("output"), help="of the run")
    parser.add_argument("-hf", "--hydra-folder", default=".hydra", help="the folder there that has config.yaml")
    unused = {"-np": "--num-proc", "-e": "--epochs", "-bs": "--batch-size", "-de": "--do-eval", "-bse": "--batch-size-eval",
              "-c": "--do-checkpoint", "-d": "--debug", "-n": "--name"}  # fmt: skip
    for short, name in unused.items():
        parser.add_argument(short, name, help="accepted as by DLIO, without effect: the run's own files have it")
    args = parser.parse_args()
    try:
        workload = _composed(args.output_folder, args.hydra_folder)
        path = args.output_folder / f"DLIO_{workload['model']['name']}_report.txt"
        write_whole(path, report(args.output_folder, workload).encode())
    except IotwinError as error:
        print(f"dlio_postprocessor: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
