"""Convert plain values to a Config and check that they do not contradict each other. Each error names the key, in one line."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from iotwin.common.errors import UsageError
from iotwin.common.numbers.durations import Quantiles, Recorded, Uniform
from iotwin.common.numbers.element_types import element_type
from iotwin.common.paths_below import stays_within
from iotwin.workload_yaml.keys_and_types import convert_section
from iotwin.workload_yaml.schema import Config, Pipeline, TwinCheckpoint
from iotwin.workload_yaml.train_section import knows_batch

_MOST_SAMPLES = 1 << 50


def checked_config(raw: dict[str, Any], where: Callable[[str], str]) -> Config:
    """Return the Config with the values of `raw`. `where` returns the origin of a key, for messages.

    Raises UsageError if a key is unknown or a value is wrong. The message is one line with the key and its origin.
    """
    config = convert_section(raw, Config, where)
    _check(config, where)
    return config


def _check(config: Config, where: Callable[[str], str]) -> None:
    """Raise UsageError if values contradict each other although each one is valid. The message names the key."""
    wrong = [(key, problem) for key, bad, problem in _conflicts(config) if bad]
    wrong += _wrong_distributions(config)
    # The workload may come from a stranger: a name that leads out of its folder would let the run write elsewhere.
    for index, file in enumerate(config.twin.checkpoint.files):
        if not stays_within(file.name):
            wrong.append((f"twin.checkpoint.files[{index}].name", f"'{file.name}' must be a path inside checkpoint_folder"))
    for kind in ("train_files", "eval_files"):
        names = getattr(config.twin, kind) or []
        wrong += [(f"twin.{kind}", f"'{name}' must be a path inside data_folder") for name in names if not stays_within(name)]
        if len(set(names)) < len(names):
            wrong.append((f"twin.{kind}", "a name is listed twice"))
    for key in ("dataset.record_element_type", "reader.transformed_record_element_type"):
        section, _, name = key.partition(".")
        if element_type(word := getattr(getattr(config, section), name)) is None:
            wrong.append((key, f"'{word}' is no element type; give one of numpy's such as uint8 or float32"))
    if wrong:
        raise UsageError(f"{where(wrong[0][0])}: {wrong[0][0]}: {wrong[0][1]}")


def _conflicts(config: Config) -> list[tuple[str, bool, str]]:
    workflow, twin, model, dataset = config.workflow, config.twin, config.model, config.dataset
    names = {file.name for file in twin.checkpoint.files}
    nothing = not (workflow.train or workflow.checkpoint or workflow.generate_data or workflow.query)
    is_transformer = model.type == "transformer"
    return [
        ("workflow.train", nothing, "nothing is left to do; set train, checkpoint or generate_data to true"),
        ("train.total_training_steps", config.train.total_training_steps == 0, "must be at least 1, or -1 for all"),
        ("evaluation.total_eval_steps", config.evaluation.total_eval_steps == 0, "must be at least 1, or -1 for all"),
        (
            "checkpoint.checkpoint_folder",
            "://" in config.checkpoint.checkpoint_folder and (twin.checkpoint != TwinCheckpoint() or twin.resume is not None),
            "is a URL, where twin.checkpoint and twin.resume have no effect; leave them out, or give a directory",
        ),
        (
            "dataset.num_samples_per_file",
            dataset.num_samples_per_file * max(dataset.num_files_train or 1, dataset.num_files_eval or 1) > _MOST_SAMPLES,
            f"come to more than {_MOST_SAMPLES} samples over all files; give fewer",
        ),
        (
            "output.log_file",
            "/" in config.output.log_file or not stays_within(config.output.log_file),
            f"{config.output.log_file!r} is no name of a file in output.folder",
        ),
        (
            "twin.checkpoint.policy",
            twin.checkpoint.policy is not None
            and (config.checkpoint.checkpoint_mechanism_classname or twin.checkpoint.seconds_between) is not None,
            "decides alone, of checkpoints of the emulator's own; leave out checkpoint_mechanism_classname and seconds_between",
        ),
        *_format_conflicts(config),
        ("twin.checkpoint.files", len(names) < len(twin.checkpoint.files), "two files have the same name"),
        (
            "twin.resume.epoch",
            twin.resume is not None and twin.resume.epoch > config.train.epochs,
            f"{twin.resume and twin.resume.epoch} is after the last of train.epochs, {config.train.epochs}",
        ),
        (
            "twin.resume",
            twin.resume is not None and twin.pipeline is not None,
            "a pipeline runs whole; leave it out",
        ),
        *_pipeline_conflicts(twin.pipeline),
        (
            "train.computation_batch_size",
            config.train.computation_batch_size is not None and knows_batch(config.train.computation_time),
            "the step time is that of reader.batch_size already; leave it out",
        ),
        ("model.num_layers", is_transformer and model.num_layers < 1, "a transformer has at least 1"),
        (
            "model.parallelism.zero_stage",
            model.parallelism.zero_stage == 3 and model.parallelism.pipeline > 1,
            "stage 3 shards the model over all ranks, so pipeline must be 1",
        ),
        (
            "twin.clock",
            twin.clock == "virtual" and twin.busy_wait,
            "a virtual clock skips computing, which twin.busy_wait does for real; leave out one of them",
        ),
        (
            "reader.multiprocessing_context",
            config.reader.multiprocessing_context == "threads" and config.reader.data_loader == "pytorch",
            "PyTorch's loader has no threads; take fork, spawn or forkserver, or the native loader",
        ),
        *(
            (f"reader.{key}", twin.recorded is None and getattr(config.reader, key) == word, f"{word} is for recorded twins")
            for key, word in (("read_type", "kept_open"), ("sample_shuffle", "sorted"))
        ),
        (
            "twin.reader.read_sizes",
            0 in twin.reader.read_sizes[:-1],
            "a 0 stands for the read that finds the end of a file; it must be the last size",
        ),
        (
            "profiling.profiler",
            workflow.profiling and config.profiling.profiler in ("darshan", "tensorboard"),
            "not supported; use iostat or trace",
        ),
    ]


def _pipeline_conflicts(pipeline: Pipeline | None) -> list[tuple[str, bool, str]]:
    if pipeline is None:
        return []
    key, by_link = "twin.pipeline", pipeline.link_bytes_per_s is not None
    return [
        (f"{key}.stages", bool(pipeline.stages) == (pipeline.plan is not None), "list the stages, or give `plan`, not both"),
        (
            f"{key}.link_bytes_per_s",
            by_link and any(not stage.input_bytes for stage in pipeline.stages[1:]),
            "needs the bytes that cross it; give input_bytes of every stage but the first",
        ),
    ]


def _format_conflicts(config: Config) -> list[tuple[str, bool, str]]:
    key, twin = "twin.checkpoint.format", config.twin.checkpoint
    slots = twin.format == "slots"
    kept = twin.keep is not None or twin.commit == "folder"
    read = max(config.checkpoint.num_checkpoints_read, 0) > 0 or config.twin.resume is not None
    return [
        (key, twin.format is not None and config.framework == "tensorflow", "is PyTorch's; leave it out with tensorflow"),
        (key, slots and kept, "slots are overwritten in turns; leave out keep, and commit: folder"),
        (key, slots and read, "slots are not read back; leave out num_checkpoints_read and resume, or take another format"),
        (key, slots and config.twin.pipeline is not None, "stages of a pipeline have no slots; take another format"),
    ]


def _wrong_distributions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) for every distribution in `config` whose parameters contradict each other."""
    for key, struct in _structs_in(config, ""):
        match struct:
            case Quantiles(values) if any(a > b for a, b in pairwise(values)):
                yield f"{key}.values", "quantiles must ascend"
            case Uniform(low, high) if low > high:
                yield f"{key}.min", "must not be above max"


def recorded_times(config: Config) -> str:
    """Return the key of the first time that a file of recorded times defines; '' if there is none."""
    return next((key for key, struct in _structs_in(config, "") if isinstance(struct, Recorded)), "")


def _structs_in(value: Any, at: str) -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield (key, struct) for every section and distribution in `value`, also in lists. `at`: the key of `value`."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _structs_in(item, f"{at}[{index}]")
    if isinstance(value, msgspec.Struct):
        yield at, value
        for field in msgspec.structs.fields(value):
            yield from _structs_in(getattr(value, field.name), f"{at}.{field.name}" if at else field.name)
