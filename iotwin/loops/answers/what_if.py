"""Answer what-if questions: run a workload with each value of one key, and compare the runs with the unchanged workload."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iotwin.common.errors import UsageError
from iotwin.common.numbers.confidence import Estimate, mean
from iotwin.workload_yaml import Rematerialized
from iotwin.workload_yaml.dlio_spellings import known_name
from iotwin.workload_yaml.train_section import knows_batch

if TYPE_CHECKING:
    from iotwin.workload_yaml import Config

ACCELERATORS = "accelerators"
_BATCH = "reader.batch_size"
_BUDGET = "train.computation_time.budget"


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


def ask(key: str, values: list[str], run: Callable[[str | None], dict[str, Any]], runs: int = 1) -> dict[str, Any]:
    """Return a document with a row for the unchanged workload, then for each value of `key`.

    `run(value)` runs the workload with that value, or unchanged if `value` is None, and returns the summary. All variants run
    `runs` times, in turn. A row has the medians of its runs, and the folder `output` of its last run. `speed_up` is the mean
    ratio of the variant to the unchanged workload, with the 95 % interval `low`, `high`. `within_noise`: whether this interval
    contains 1; None for a single run.
    """
    found: dict[str | None, list[dict[str, Any]]] = {value: [] for value in (None, *values)}
    for _ in range(runs):
        for value, summaries in found.items():
            summaries.append(run(value))
    rows = []
    for value, summaries in found.items():
        speed = _speed_up(summaries, found[None])
        low, high = (None, None) if speed is None else speed[1:]
        within = None if low is None or high is None else low <= 1 <= high
        rows.append(
            _medians([_row(value, summary) for summary in summaries])
            | {"speed_up": speed and speed.value, "low": low, "high": high, "runs": runs, "within_noise": within}
        )
    return {"what_if": key, "runs": rows}


def _medians(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return, by key, the median of the numbers of several runs; None if a run lacks the number. Texts are the last run's."""
    found = dict(rows[-1])
    for key, last in found.items():
        values = [row[key] for row in rows]
        if len({*values}) > 1 and not isinstance(last, str):
            found[key] = None if None in values else float(np.median(values))
    return found


def _speed_up(changed: Sequence[dict[str, Any]], unchanged: Sequence[dict[str, Any]]) -> Estimate | None:
    """Return the ratio of samples per second, or of durations of twins with a recording; None if either is unknown."""
    ratios = []
    for one, other in zip(changed, unchanged, strict=True):
        above, below = (each["metric"].get("train_throughput_mean_samples_per_second") for each in (one, other))
        if not below:  # a twin with a recording, or a run that only writes checkpoints
            below, above = (each["iotwin"]["elapsed_s"] for each in (one, other))
        if not above or not below:
            return None
        ratios.append(above / below)
    return mean(np.array(ratios))


def overrides_of(key: str, value: str, config: "Config") -> list[str]:
    """Return the overrides of the variant of a question about `key`. `config`: the unchanged workload.

    If the key is the batch size, and the workload lacks the batch size of its step time, the unchanged batch size is assumed.
    Raises UsageError if the key is the memory budget, and the workload lacks the costs of budgets.
    """
    words, train = [f"++workload.{key}={value}"], config.train
    if known_name(key, value) == _BUDGET and not isinstance(train.computation_time, Rematerialized):
        raise UsageError(
            f"{key}: the workload does not have what memory budgets cost, which is a train.computation_time of the type "
            "rematerialized; for a twin, run `python -m iotwin.workloads.dtr` with --operations FILE, and fit its trace"
        )
    is_unscaled = (
        config.twin.recorded is None and train.computation_batch_size is None and not knows_batch(train.computation_time)
    )
    if key == _BATCH and is_unscaled:
        words.append(f"++workload.train.computation_batch_size={config.reader.batch_size}")
    return words


def assumptions_of(key: str, config: "Config") -> list[str]:
    """Return sentences on what the answer to a question about `key` assumes."""
    share = config.train.computation_per_sample
    if key != _BATCH or knows_batch(config.train.computation_time):
        return []
    grows = "in proportion to the batch" if share == 1 else f"by its share of {share:g} per sample, the rest remains as it is"
    return [f"the computation of a step grows {grows}; train.computation_per_sample (0 to 1) sets that share"]


def _row(value: str | None, summary: dict[str, Any]) -> dict[str, Any]:
    metric, own = summary["metric"], summary["iotwin"]
    training = own.get("estimates", {}).get("train", {})  # the summary of a twin with a recording has no estimates
    trained = own.get("training") or {}
    return {
        "value": value,
        "accelerators": summary["num_accelerators"],
        "au_percentage": _au(summary),
        "au_without_recompute_percentage": _without_recompute(summary),
        "samples_per_second": metric.get("train_throughput_mean_samples_per_second", trained.get("samples_per_second")),
        "read_MB_per_second": metric.get("train_io_mean_MB_per_second", _read_rate(own, trained)),
        "step_s": trained.get("step_s"),
        "au": trained.get("au"),
        "data_wait_s": (training.get("data_wait_s") or {}).get("value"),
        "bytes_read": own.get("bytes_read"),
        "bytes_written": own.get("bytes_written"),
        "calls": sum(own["recorded"]["calls"].values()) if "recorded" in own else None,
        "waited_s": (own.get("recorded") or {}).get("data_wait_s"),
        "page_cache_hit_ratio": own["page_cache_hit_ratio"],
        "save_checkpoint_GB_per_second": metric.get("save_checkpoint_io_mean_GB_per_second"),
        "checkpoint_interval": (own.get("checkpoint_policy") or {}).get("interval"),
        "goodput_steps_per_s": (own.get("checkpoint_policy") or {}).get("goodput_steps_per_s"),
        "elapsed_s": own["elapsed_s"],
        "output": summary["output"],
    }


def _au(summary: dict[str, Any]) -> float | None:
    """Return a run's accelerator utilisation (AU) in percent; None if it is unknown.

    The AU is `train_au_mean_percentage`. A twin with a recording has no such metric; its AU is that of all its epochs.
    """
    metric, au = summary["metric"], (summary["iotwin"].get("training") or {}).get("au")
    found: float | None = metric.get("train_au_mean_percentage", None if au is None else 100 * au)
    return found


def _read_rate(own: dict[str, Any], trained: dict[str, Any]) -> float | None:
    """Return the MiB that a twin with a recording reads for each second of its epochs; None for other runs."""
    return own["bytes_read"] / sum(trained["epoch_s"]) / (1 << 20) if "recorded" in own and trained else None


def _without_recompute(summary: dict[str, Any]) -> float | None:
    """Return the accelerator utilisation without recomputation, in percent; None if the run has no utilisation."""
    au, remat = _au(summary), summary["iotwin"].get("rematerialization")
    if au is None:
        return None
    return float(au) * (1 - remat["recompute_share"]) if remat else float(au)
