"""Read, compose, check and write the workload YAML, which has DLIO's keys and, under ``twin:``, iotwin's.

An unknown key is an error that names the nearest known key, because a run without the intended setting would mislead.
"""

from iotwin.common.numbers.durations import (
    Duration,
    Exponential,
    Gamma,
    InOrder,
    Lognormal,
    Normal,
    Poisson,
    Quantiles,
    Recorded,
    Uniform,
)
from iotwin.workload_yaml.compose import SHIPPED, ComposedWorkload, compose, load, note_ignored, parse_foreign, select
from iotwin.workload_yaml.dataset import Dataset, Parquet
from iotwin.workload_yaml.hydra_command_line import ConfigFolders, compose_job, job_files, job_text
from iotwin.workload_yaml.recorded_section import TwinRecorded
from iotwin.workload_yaml.schema import (
    Checkpoint,
    CheckpointFile,
    CheckpointPolicy,
    Config,
    Evaluation,
    Model,
    Output,
    OutputMetric,
    Parallelism,
    Reader,
    Storage,
    Transformer,
    Twin,
    TwinCheckpoint,
    TwinEvaluation,
    TwinReader,
    TwinResume,
    Workflow,
)
from iotwin.workload_yaml.step_times import MeasuredStepTime, Rematerialized, StepTime, StepTimeRegression
from iotwin.workload_yaml.train_section import Train
from iotwin.workload_yaml.yaml_file import check_unedited, dump

__all__ = [
    "SHIPPED", "Checkpoint", "CheckpointFile", "CheckpointPolicy", "ComposedWorkload", "Config", "ConfigFolders", "Dataset",
    "Duration", "Evaluation", "Exponential", "Gamma", "InOrder", "Lognormal", "MeasuredStepTime", "Model", "Normal", "Output",
    "OutputMetric", "Parallelism", "Parquet", "Poisson", "Quantiles", "Reader", "Recorded", "Rematerialized", "StepTime",
    "StepTimeRegression", "Storage", "Train", "Transformer", "Twin", "TwinCheckpoint", "TwinEvaluation", "TwinReader",
    "TwinRecorded", "TwinResume", "Uniform", "Workflow", "check_unedited", "compose", "compose_job", "dump", "job_files",
    "job_text", "load", "note_ignored", "parse_foreign", "select",
]  # fmt: skip
