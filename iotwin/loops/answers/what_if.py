"""Answer what-if questions: run a workload with each value of one key, and compare the runs with the unchanged workload."""

from collections.abc import Callable
from typing import Any

from iotwin.common.errors import UsageError

ACCELERATORS = "accelerators"
_ABBREVIATIONS = {"accelerator.memory_budget": "train.computation_time.budget"}


def key_of(key: str) -> str:
    """Return the full name of an abbreviated key such as accelerator.memory_budget; other keys are returned unchanged."""
    return _ABBREVIATIONS.get(key, key)


def parse_question(text: str) -> tuple[str, list[str]]:
    """Return the key and the values of `accelerators=8,64` or `reader.read_threads=1,4`. Raises UsageError for other text."""
    key, equals, values = text.partition("=")
    found = [value.strip() for value in values.split(",") if value.strip()]
    key = key.lstrip("+").removeprefix("workload.")
    if not equals or not key or not found:
        raise UsageError(f"--what-if '{text}' asks nothing; write for example accelerators=8,64 or reader.read_threads=1,4")
    if key == ACCELERATORS and not all(value.isdecimal() and int(value) > 0 for value in found):
        raise UsageError(f"--what-if '{text}': accelerators are counted from 1; write for example accelerators=8,64")
    return key, found


def ask(key: str, values: list[str], run: Callable[[str | None], dict[str, Any]]) -> dict[str, Any]:
    """Return a document with a row for each run: the unchanged workload, then each value of `key`.

    `run(value)` runs the workload with that value, or unchanged if it is None, and returns the summary.
    """
    rows = [_row(value, run(value)) for value in (None, *values)]
    for row in rows:
        base = rows[0]["samples_per_second"]
        if base:
            row["speed_up"] = row["samples_per_second"] / base if row["samples_per_second"] else None
        else:  # a twin with a recording, or a run that only writes checkpoints
            row["speed_up"] = rows[0]["elapsed_s"] / row["elapsed_s"] if row["elapsed_s"] else None
    return {"what_if": key, "runs": rows}


def _row(value: str | None, summary: dict[str, Any]) -> dict[str, Any]:
    metric, own = summary["metric"], summary["iotwin"]
    training = own.get("estimates", {}).get("train", {})  # a twin with a recording estimates nothing
    return {
        "value": value,
        "accelerators": summary["num_accelerators"],
        "au_percentage": metric.get("train_au_mean_percentage"),
        "au_without_recompute_percentage": _without_recompute(summary),
        "samples_per_second": metric.get("train_throughput_mean_samples_per_second"),
        "read_MB_per_second": metric.get("train_io_mean_MB_per_second"),
        "data_wait_s": (training.get("data_wait_s") or {}).get("value"),
        "waited_s": (own.get("recorded") or {}).get("data_wait_s"),
        "page_cache_hit_ratio": own["page_cache_hit_ratio"],
        "save_checkpoint_GB_per_second": metric.get("save_checkpoint_io_mean_GB_per_second"),
        "checkpoint_interval": (own.get("checkpoint_policy") or {}).get("interval"),
        "goodput_steps_per_s": (own.get("checkpoint_policy") or {}).get("goodput_steps_per_s"),
        "elapsed_s": own["elapsed_s"],
        "output": summary["output"],
    }


def _without_recompute(summary: dict[str, Any]) -> float | None:
    """Return the accelerator utilisation without recomputation, in percent; None if the run has no utilisation."""
    au, remat = summary["metric"].get("train_au_mean_percentage"), summary["iotwin"].get("rematerialization")
    if au is None:
        return None
    return float(au) * (1 - remat["recompute_share"]) if remat else float(au)
