"""The twin: a workload YAML with DLIO's keys, plus ours under ``twin:``, as typed structs.

Only keys that the emulator honours are fields here. A key that DLIO has and we do not honour is refused by name rather than
ignored, because a run that silently drops a setting measures something else than it says.
"""

import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from tracing_tools.trace.errors import UsageError, nearest
from tracing_tools.trace.output import write_whole

# Thirty years and more is a unit mistaken; the bound also keeps infinity out.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
# An explicit maximum keeps one typing error (a size in the place of a count) from becoming a fork bomb.
Processes = Annotated[int, msgspec.Meta(ge=0, le=1024)]


class _Section(msgspec.Struct, forbid_unknown_fields=True):
    """What every section of the YAML is: known fields and nothing else."""


class Normal(_Section, tag_field="type", tag="normal"):
    """A normal distribution of seconds, truncated at zero."""

    mean: Seconds
    stdev: Seconds = 0.0


class Quantiles(_Section, tag_field="type", tag="quantiles"):
    """An empirical distribution of seconds: values at equally spaced probabilities 0, 1/(n-1), ..., 1, ascending."""

    values: Annotated[list[Seconds], msgspec.Meta(min_length=1)]


Duration = Seconds | Normal | Quantiles  # seconds: always the same, or drawn anew each time


class Model(_Section):
    """The model emulated; the name is a label."""

    name: str = "default"


class Workflow(_Section):
    """Which parts of the job run."""

    generate_data: bool = False  # DLIO's key; only False, as `iotwin generate` makes data sets
    train: bool = True
    evaluation: bool = False
    checkpoint: bool = False


class Dataset(_Section):
    """The files read."""

    data_folder: str
    format: Literal["npy"] = "npy"
    num_files_train: Count | None = None  # samples to train on (a paired case counts once); all there are when not given
    num_files_eval: Count | None = None
    num_samples_per_file: Literal[1] = 1
    record_length_bytes: Count | None = None  # mean sample size (of a pair: both files); a data set far from it is noted
    record_length_bytes_stdev: Annotated[float, msgspec.Meta(ge=0)] | None = None


class Reader(_Section):
    """How samples are read: the loader processes of one rank."""

    data_loader: Literal["native"] = "native"  # issues the system calls of PyTorch's DataLoader, without PyTorch
    batch_size: Positive = 1
    batch_size_eval: Positive = 1
    read_threads: Processes = 1  # worker processes; 0: the main process reads
    # Batches in flight over all workers, each having ceil(size / read_threads), as in DLIO. When not given, each worker has two
    # whatever their number, as in PyTorch.
    prefetch_size: Positive | None = None
    file_shuffle: Literal["off", "seed"] = (
        "off"  # with one sample per file, the same thing as sample_shuffle: either one shuffles
    )
    sample_shuffle: Literal["off", "seed"] = "off"
    preprocess_time: Duration = 0.0  # per training sample, in the worker


class Train(_Section):
    """Training steps."""

    epochs: Positive = 1
    computation_time: Duration = 0.0  # per step
    total_training_steps: Annotated[
        int, msgspec.Meta(ge=-1)
    ] = -1  # at most this many steps in each epoch, as DLIO has it; -1: all
    seed: Count = 123  # of order, drawn times and checkpoint content
    seed_change_epoch: bool = True  # a fresh order each epoch; False: the same order in all


class Evaluation(_Section):
    """Evaluation after training epochs: first after `eval_after_epoch`, then every `epochs_between_evals`."""

    eval_time: Duration = 0.0  # per evaluation step
    eval_after_epoch: Positive = 1
    epochs_between_evals: Positive = 1


class Checkpoint(_Section):
    """Checkpoints after training epochs: first after `checkpoint_after_epoch`, then every `epochs_between_checkpoints`."""

    checkpoint_folder: str = "./checkpoints/"
    checkpoint_after_epoch: Positive = 1
    epochs_between_checkpoints: Positive = 1
    fsync: bool | None = None  # for all files; when not given, each file does as recorded


class Output(_Section):
    """Where results go."""

    folder: str = "./output/"


class Metric(_Section):
    """What counts as success."""

    au: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9  # accelerator utilisation to reach


class CheckpointFile(_Section):
    """One file of a checkpoint, as it was seen being written."""

    name: str  # within checkpoint_folder; '{epoch}' becomes the epoch's number, a name without it is overwritten
    write_sizes: Annotated[list[tuple[Count, Positive]], msgspec.Meta(min_length=1)]  # [bytes, how often], in order
    fsync: bool = False
    rename: bool = False  # written under a temporary name, then renamed
    epochs: list[Positive] | None = None  # written only at these epochs' checkpoints (a best-so-far file); None: at every one


class TwinCheckpoint(_Section):
    """What DLIO's checkpoint section cannot say."""

    files: list[CheckpointFile] = []
    serialization_time: Duration = 0.0  # seconds per file besides writing, spread over its writes in proportion to their bytes


class TwinEvaluation(_Section):
    """What DLIO's evaluation section cannot say."""

    read_threads: Processes | None = None  # worker processes; None: as in training
    preprocess_time: Duration = 0.0  # per evaluation sample


class Twin(_Section):
    """What iotwin adds to DLIO's keys."""

    source: str = ""  # the trace the twin was derived from
    host: str = ""  # the machine that trace was taken on
    assumptions: list[str] = []  # what the trace could not tell, in words
    layout: Literal["unet3d", "npy"] = "npy"
    train_files: list[str] | None = None  # names within data_folder; of a unet3d pair the part before _x.npy
    eval_files: list[str] | None = None
    startup_time: Seconds = 0.0  # from the process's start to the start of init: imports
    init_time: Duration = 0.0  # from the start of init to the first epoch
    first_step_time: Duration | None = (
        None  # computation time of the very first training step, which warms up; None: as the others
    )
    persistent_workers: bool = False  # worker processes live through all epochs; False: fresh ones for each
    evaluation: TwinEvaluation = msgspec.field(default_factory=TwinEvaluation)
    checkpoint: TwinCheckpoint = msgspec.field(default_factory=TwinCheckpoint)


class Config(_Section, kw_only=True):
    """One workload, as the emulator runs it."""

    model: Model = msgspec.field(default_factory=Model)
    framework: Literal["pytorch"] = "pytorch"
    workflow: Workflow = msgspec.field(default_factory=Workflow)
    dataset: Dataset
    reader: Reader = msgspec.field(default_factory=Reader)
    train: Train = msgspec.field(default_factory=Train)
    evaluation: Evaluation = msgspec.field(default_factory=Evaluation)
    checkpoint: Checkpoint = msgspec.field(default_factory=Checkpoint)
    output: Output = msgspec.field(default_factory=Output)
    metric: Metric = msgspec.field(default_factory=Metric)
    twin: Twin = msgspec.field(default_factory=Twin)


# DLIO's keys that the emulator does not honour. A whole section stands under its own name with no keys.
_DLIO_ONLY: dict[str, frozenset[str]] = {
    "": frozenset({"storage", "profiling", "data_reader"}),
    "model": frozenset({
        "type", "model_size", "model_size_bytes", "model_datatype", "optimizer_datatype", "optimization_groups", "num_layers",
        "layer_parameters", "parallelism", "transformer",
    }),
    "workflow": frozenset({"profiling", "query"}),
    "dataset": frozenset({
        "record_length", "record_length_stdev", "record_length_resize", "record_length_bytes_resize", "record_dims",
        "record_element_type", "num_subfolders_train", "num_subfolders_eval", "file_prefix", "keep_files",
        "generation_buffer_size", "compression", "compression_level", "enable_chunking", "chunk_size", "hdf5",
    }),
    "reader": frozenset({
        "data_loader_classname", "reader_classname", "data_loader_sampler", "computation_threads", "shuffle_size", "read_type",
        "file_access", "transfer_size", "preprocess_time_stdev", "multiprocessing_context", "pin_memory", "odirect",
        "dont_use_mmap",
        "transformed_record_dims", "transformed_record_element_type",
    }),
    "train": frozenset({"computation_time_stdev"}),
    "evaluation": frozenset({"eval_time_stdev"}),
    "checkpoint": frozenset({
        "steps_between_checkpoints", "type", "mode", "recovery_rank_shift", "rank_sync", "time_between_checkpoints",
        "num_checkpoints_write", "num_checkpoints_read", "randomize_tensor", "ksm", "checkpoint_mechanism_classname",
    }),
    "output": frozenset({"log_file", "metric"}),
}  # fmt: skip


class _Yaml12(yaml.SafeLoader):
    """YAML 1.2's scalars: ``off`` and ``no`` are words and ``1e-3`` is a number, where PyYAML follows YAML 1.1."""


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line and quotes whatever YAML 1.1 or 1.2 could take for something else than text."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        numeric = all(isinstance(item, int | float | list | tuple) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=numeric)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Yaml12.yaml_implicit_resolvers = {}

for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    for _class in (_Yaml12, _Dumper):  # the dumper keeps YAML 1.1's as well
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Return the workload in the YAML at `path`, changed by `overrides` such as ``++workload.reader.batch_size=4``.

    Raises UsageError, one line with the file and the key, for a file that cannot be read or is no YAML, an unknown or unsupported
    key, a value of the wrong type and values that do not fit together.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; give the YAML that `iotwin fit` wrote") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from None
    raw = _parse(text, str(path))
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: is not a workload: it should hold sections such as dataset: and train:")
    for override in overrides:
        _override(raw, override)
    try:
        config = _convert(raw, path)
    except RecursionError:
        raise UsageError(f"{path}: an alias in it refers to itself; write the value out") from None
    _check(config, path)
    return config


def dump(config: Config, path: Path | str) -> None:
    """Write `config` as a YAML that `load` reads back equal; the file at `path` is replaced whole or not at all."""
    path = Path(path)
    kept = _without_none(msgspec.to_builtins(config))
    text = f"# An I/O twin; run it with: iotwin emulate {path.name}\n" + yaml.dump(
        kept, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=130, allow_unicode=True
    )
    write_whole(path, text.encode("utf-8"))


def _without_none(value: Any) -> Any:
    """Drop the fields that are None: the YAML says what is known."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def _parse(text: str, where: str) -> Any:
    try:
        # The loader is a SafeLoader: it makes scalars, lists and dicts only.
        return yaml.load(text, Loader=_Yaml12)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line}: is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not YAML: {' '.join(str(error).split())}") from None


def _override(raw: dict[str, Any], override: str) -> None:
    name, equals, value = override.partition("=")
    keys = name.removeprefix("++").removeprefix("workload.").split(".")
    if not equals or not all(keys):
        raise UsageError(f"'{override}' is not an override; write for example ++workload.reader.batch_size=4")
    section: Any = raw
    for key in keys[:-1]:
        section = section.setdefault(key, {}) if isinstance(section, dict) else None
    if not isinstance(section, dict):
        raise UsageError(f"'{override}': {'.'.join(keys[:-1])} is a value, not a section")
    section[keys[-1]] = _parse(value, f"'{override}'")


def _convert(raw: dict[str, Any], path: Path) -> Config:
    for at, key, known in _unknown_keys(raw, Config, ""):
        full = f"{at}.{key}" if at else str(key)
        if key in _DLIO_ONLY.get(at, ()):
            raise UsageError(f"{path}: {full}: a DLIO key that is not supported yet; remove it to run without its effect")
        raise UsageError(f"{path}: {full}: unknown key{nearest(str(key), known)}")
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        key = at.strip("`").lstrip(".")
        problem = problem.replace("`", "").replace("Object", "section").replace("object", "section")
        if allowed := _allowed(key):
            problem = f"{problem.removeprefix('Invalid enum value ')} is not supported; use {' or '.join(allowed)}"
        raise UsageError(f"{path}: {key + ': ' if key else ''}{problem[0].lower()}{problem[1:]}") from None


def _unknown_keys(value: Any, annotation: Any, at: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (section, key, known keys) for every key in `value` that the struct in `annotation` does not have."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown_keys(item, annotation, f"{at}[{number}]")
    candidates = list(_structs(annotation))
    if not isinstance(value, dict) or not candidates:
        return
    tagged = [struct for struct in candidates if struct.__struct_config__.tag == value.get("type")]
    struct = (tagged or candidates)[0]
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    known = [*fields, *(["type"] if struct.__struct_config__.tag_field else [])]
    for key, item in value.items():
        if key not in known:
            yield at, key, known
        elif key in fields:
            yield from _unknown_keys(item, fields[key], f"{at}.{key}" if at else key)


def _allowed(key: str) -> list[str]:
    """Return the words that the field at `key`, such as ``reader.data_loader``, may hold; none when it holds something else."""
    annotation: Any = Config
    for part in key.split("."):
        fields = {field.name: field.type for struct in _structs(annotation) for field in msgspec.structs.fields(struct)}
        annotation = fields.get(part.partition("[")[0])
    return [str(word) for word in typing.get_args(annotation)] if typing.get_origin(annotation) is Literal else []


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _structs(argument)


def _check(config: Config, path: Path) -> None:
    """Refuse values that are right one by one but not together; UsageError names the key."""
    wrong = [(key, problem) for key, bad, problem in _conflicts(config) if bad]
    for key, duration in _durations(config):
        if isinstance(duration, Quantiles) and any(a > b for a, b in zip(duration.values, duration.values[1:], strict=False)):
            wrong.append((f"{key}.values", "quantiles must ascend"))
    for number, file in enumerate(config.twin.checkpoint.files):
        if not _is_file_name(file.name):
            wrong.append((f"twin.checkpoint.files[{number}].name", f"'{file.name}' must be a path inside checkpoint_folder"))
    for kind in ("train_files", "eval_files"):
        names = getattr(config.twin, kind) or []
        wrong += [(f"twin.{kind}", f"'{name}' must be a path inside data_folder") for name in names if not _is_file_name(name)]
        if len(set(names)) < len(names):
            wrong.append((f"twin.{kind}", "a name is listed twice"))
    if wrong:
        raise UsageError(f"{path}: {wrong[0][0]}: {wrong[0][1]}")


def _conflicts(config: Config) -> list[tuple[str, bool, str]]:
    workflow, twin = config.workflow, config.twin
    return [
        ("workflow.generate_data", workflow.generate_data, "not supported; make the data set first with: iotwin generate"),
        ("workflow.train", not workflow.train, "must be true: runs without training are not supported yet"),
        ("train.total_training_steps", config.train.total_training_steps == 0, "must be at least 1, or -1 for all"),
        (
            "twin.checkpoint.files",
            workflow.checkpoint and not twin.checkpoint.files,
            "workflow.checkpoint needs at least one file",
        ),
        (
            "twin.checkpoint.files",
            len({file.name for file in twin.checkpoint.files}) < len(twin.checkpoint.files),
            "two files have the same name",
        ),
    ]


def _durations(config: Config) -> list[tuple[str, Duration | None]]:
    return [
        ("train.computation_time", config.train.computation_time),
        ("reader.preprocess_time", config.reader.preprocess_time),
        ("evaluation.eval_time", config.evaluation.eval_time),
        ("twin.init_time", config.twin.init_time),
        ("twin.first_step_time", config.twin.first_step_time),
        ("twin.evaluation.preprocess_time", config.twin.evaluation.preprocess_time),
        ("twin.checkpoint.serialization_time", config.twin.checkpoint.serialization_time),
    ]


def _is_file_name(name: str) -> bool:
    """Whether `name` stays inside the folder it is joined to: a twin that somebody sent must not write elsewhere."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name
