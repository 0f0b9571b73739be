"""Tables of instrumented runs: statistics of the parts of steps, throughputs, regressions. Slow first steps are left out."""

from typing import Any

import numpy as np
import pandas as pd

CONFIGURATION = ["workload", "variant", "gpus", "batch"]
_STEP_KEYS = ("load_batch_mem", "load_batch_gpu", "all_compute", "step_end", "batch_load", "batch_preproc")
# By name: the timed part from which a throughput (samples/s) is computed, and True if the part handles a batch, False for one
# sample.
_THROUGHPUTS = {
    "data loading": ("load_batch_mem", True),
    "compute": ("all_compute", True),
    "storage, by sample": ("sample_load", False),
    "storage, by batch": ("batch_load", True),
    "step": ("step_end", True),
}


def settled(steps: pd.DataFrame) -> pd.DataFrame:
    """Return `steps` without evaluations and without cold steps.

    Cold steps are each rank's first step of every epoch or block. In unet3d, all steps of the first epoch are cold if there are
    several epochs.
    """
    frame = steps[~steps["key"].str.startswith("eval_")]
    number = frame.groupby(["run", "rank", "block", "key"], sort=False).cumcount()
    several = frame.groupby(["run", "key"])["seconds"].transform("size") > 1
    cold = (number == 0) & frame["key"].isin(_STEP_KEYS) & several & (frame["block"] > 0)
    blocks = frame.groupby("run")["block"].transform("max")
    cold |= (frame["workload"] == "unet3d") & (frame["block"] == 1) & (blocks > 1)
    return frame[~cold]


def statistics(steps: pd.DataFrame) -> pd.DataFrame:
    """Return, for every configuration and part, count, mean, std, q1, median and q3 in seconds."""
    groups = steps.groupby([*CONFIGURATION, "key"])["seconds"]
    table = groups.agg(["count", "mean", "std", "median"])
    table["q1"], table["q3"] = groups.quantile(0.25), groups.quantile(0.75)
    return table[["count", "mean", "std", "q1", "median", "q3"]].fillna({"std": 0.0}).reset_index()


def throughputs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the throughputs of every configuration in samples/s: the median, and the quartiles `low` and `high`.

    A throughput is that of one rank, as each rank measures how long its batches (or samples) take in each part.
    In dlrm, one process uses all GPUs, so the throughput is that of the job.
    """
    parts = []
    for name, (key, whole_batch) in _THROUGHPUTS.items():
        found = table[table["key"] == key]
        samples = found["batch"] if whole_batch else 1
        columns = {"low": "q3", "median": "median", "high": "q1"}
        rates = {column: (samples / found[source]).replace(np.inf, np.nan) for column, source in columns.items()}
        parts.append(found[CONFIGURATION].assign(throughput=name, **rates))
    return pd.concat(parts, ignore_index=True)


def regressions(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return least-squares fits of compute time over GPUs and batch, for every workload and variant with two configurations.

    `mean` and `stdev` each have constant_s, per_gpu_s, per_sample_s and r2. The coefficient of a term that does not vary is 0.
    r2 is None if there are no more configurations than terms, since the fit then passes through every point.
    """
    compute = table[table["key"] == "all_compute"]
    fits = []
    for (workload, variant), group in compute.groupby(["workload", "variant"]):
        if len(group) < 2:
            continue
        fit: dict[str, Any] = {"workload": workload, "variant": variant, "configurations": len(group)}
        for name, column in (("mean", "mean"), ("stdev", "std")):
            fit[name] = _least_squares(
                group["gpus"].to_numpy(float), group["batch"].to_numpy(float), group[column].to_numpy(float)
            )
        fits.append(fit)
    return fits


def _least_squares(gpus: np.ndarray, batch: np.ndarray, seconds: np.ndarray) -> dict[str, float | None]:
    varies = [np.ptp(gpus) > 0, np.ptp(batch) > 0]
    terms = [np.ones_like(gpus), *(term for term, used in zip((gpus, batch), varies, strict=True) if used)]
    design = np.stack(terms, axis=1)
    found = iter(np.linalg.lstsq(design, seconds, rcond=None)[0])
    constant = float(next(found))
    slopes = [float(next(found)) if used else 0.0 for used in varies]
    predicted = constant + slopes[0] * gpus + slopes[1] * batch
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    unexplained = float(((seconds - predicted) ** 2).sum())
    flat = spread <= (1e-9 * np.abs(seconds).max()) ** 2  # the values differ only by rounding
    r2 = None if len(seconds) <= len(terms) else 1.0 if flat else 1 - unexplained / spread
    return {"constant_s": constant, "per_gpu_s": slopes[0], "per_sample_s": slopes[1], "r2": r2}


def predicted(fit: dict[str, Any], gpus: int, batch: int) -> dict[str, Any]:
    """Return the computation_time of the emulator (a normal distribution) that `fit`, of regressions(), predicts."""
    values = {
        name: fit[name]["constant_s"] + fit[name]["per_gpu_s"] * gpus + fit[name]["per_sample_s"] * batch
        for name in ("mean", "stdev")
    }
    return {"type": "normal", "mean": max(0.0, values["mean"]), "stdev": max(0.0, values["stdev"])}
