"""Workloads: a YAML with DLIO's keys, plus ours under ``twin:``, as typed structs, put together, checked and written.

A key that nobody knows is refused with the nearest known one, because a run that silently drops a setting measures something else
than it says.
"""

from benchmark.config.compose import SHIPPED, Workload, compose, find, load, select
from benchmark.config.durations import (
    Duration,
    Exponential,
    Gamma,
    Lognormal,
    Measured,
    Normal,
    Poisson,
    Quantiles,
    Recorded,
    Regression,
    Seconds,
    StepTime,
    Uniform,
)
from benchmark.config.schema import (
    Checkpoint,
    CheckpointFile,
    Config,
    Dataset,
    Evaluation,
    Hdf5,
    Metric,
    Model,
    Output,
    OutputMetric,
    Parallelism,
    Parquet,
    ParquetColumn,
    Profiling,
    Reader,
    Storage,
    Train,
    Transformer,
    Twin,
    TwinCheckpoint,
    TwinEvaluation,
    TwinReader,
    Workflow,
)
from benchmark.config.text import dump

__all__ = [
    "SHIPPED", "Checkpoint", "CheckpointFile", "Config", "Dataset", "Duration", "Evaluation", "Exponential", "Gamma",
    "Hdf5", "Lognormal", "Measured", "Metric", "Model", "Normal", "Output", "OutputMetric", "Parallelism", "Parquet",
    "ParquetColumn", "Poisson", "Profiling", "Quantiles", "Reader", "Recorded", "Regression", "Seconds", "StepTime",
    "Storage", "Train", "Transformer", "Twin", "TwinCheckpoint", "TwinEvaluation", "TwinReader", "Uniform", "Workflow",
    "Workload", "compose", "dump", "find", "load", "select",
]  # fmt: skip
