"""Configurations of experiments in the format of DTR's authors: reading, checks, and the values of keys that are missing."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.common.untrusted_files import decode_foreign, read_foreign
from iotwin.workloads.dtr.experiments import keys
from iotwin.workloads.models import MODELS, sizes_of

_MOST_BYTES = 1 << 22
KINDS = ("fixed", "ratio", "param_sweep")
# Keys that the authors' text and configurations put into extra_params, although their programs read them from the command.
_MISPLACED = {
    "use_sampling": keys.FLAG, "ignore_small_tensors": keys.FLAG, "no_sampling_below_budget": keys.BUDGET,
    "no_sampling_below_ratio": keys.NUMBER,
}  # fmt: skip
_RETRY = {"retry_on_error": keys.FLAG, "attempt_timeout": keys.POSITIVE, "max_retries": keys.AT_LEAST_1}
_TOP = {
    "active": keys.FLAG, "save_logs": keys.FLAG, "log_dest": keys.TEXT, "sync_gpu": keys.FLAG, "dtr_torch_cmd": keys.TEXT,
    "dry_run": keys.COUNT, "n_inputs": keys.AT_LEAST_1, "n_reps": keys.AT_LEAST_1, "n_times_per_input": keys.AT_LEAST_1,
    "report_errors": keys.FLAG, "set_seed": keys.FLAG, "seed": keys.COUNT, "notify": keys.TEXTS, "models": keys.TEXTS,
    "dtr_settings": keys.TABLE, "ignore_kind": keys.TEXTS, "title": keys.TEXT, "priority": keys.NUMBER, "rerun_setup": keys.FLAG,
}  # fmt: skip
_COMMAND = {
    "type": keys.one_of("baseline", "dtr"), "kind": keys.one_of(*KINDS), "batch_size": keys.AT_LEAST_1,
    "timeout": keys.POSITIVE, "memory_budget": keys.BUDGET, "ratio": keys.RATIO, "use_profiling": keys.FLAG,
    "dry_run": keys.COUNT, "n_inputs": keys.AT_LEAST_1, "n_reps": keys.AT_LEAST_1, "save_logs": keys.FLAG,
    "heuristic": keys.TEXT, "extra_params": keys.TABLE, **_MISPLACED,
}  # fmt: skip
# The budget that a command of each kind must have, by its key.
_REQUIRED = {"fixed": "memory_budget", "param_sweep": "memory_budget", "ratio": "ratio"}
_DEFAULT_BATCH, _MOST_DEPTH = 8, 20


@dataclass(frozen=True)
class DtrExperiment:
    """A configuration. `commands`: by model, its commands with their defaults. The number of a command is its index there."""

    name: str
    models: tuple[str, ...]
    commands: dict[str, list[dict[str, Any]]]
    active: bool
    dry_run: int
    n_inputs: int
    n_reps: int
    save_logs: bool
    sync_gpu: bool
    report_errors: bool
    seed: int
    title: str
    ignored_kinds: tuple[str, ...]
    notify: tuple[str, ...]
    notes: tuple[str, ...]
    content: bytes

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the configuration's content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


def read_experiment(path: Path) -> DtrExperiment:
    """Return the configuration at `path`. Raises UsageError that names the key if the configuration is not valid."""
    try:
        content = read_foreign(path, _MOST_BYTES)
        config = decode_foreign(content, object, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except IotwinError as error:
        raise UsageError(str(error)) from None
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not the configuration of an experiment: it must be an object")
    keys.check_table(str(path), config, _TOP)
    models = config.get("models", ["resnet32"])
    settings = config.get("dtr_settings", {})
    default = settings.get("default", {})
    keys.check_table(f"{path}: dtr_settings.default", default, {**_COMMAND, **_RETRY}, lists=True)
    commands = {
        model: _commands(f"{path}: dtr_settings.{model}", model, given, default)
        for model, given in settings.items()
        if model != "default"
    }
    _check_models(path, models, commands)
    return DtrExperiment(
        name=path.parent.resolve().name if path.name == "config.json" else path.stem,
        models=tuple(sorted(set(models))),
        commands=commands,
        active=config.get("active", True),
        dry_run=config.get("dry_run", 8),
        n_inputs=config.get("n_inputs", 3),
        n_reps=_repeats(config),
        save_logs=config.get("save_logs", False),
        sync_gpu=config.get("sync_gpu", True),
        report_errors=config.get("report_errors", False),
        seed=config.get("seed", 0) if config.get("set_seed", False) else 0,
        title=config.get("title", "Pareto Curve Trial"),
        ignored_kinds=tuple(config.get("ignore_kind", ())),
        notify=tuple(config.get("notify", ())),
        notes=tuple(_notes(config)),
        content=content,
    )


def _check_models(path: Path, models: list[str], commands: dict[str, Any]) -> None:
    if not models:
        raise UsageError(f"{path}: models must not be an empty list")
    for model in models:
        if model not in MODELS:
            raise UsageError(f"{path}: models: unknown model '{model}'{nearest(model, list(MODELS))}")
        if not commands.get(model):
            raise UsageError(f"{path}: dtr_settings.{model} is missing: models names {model}, so it must have commands")


def _repeats(config: dict[str, Any]) -> int:
    """Return the number of measured steps. The authors' programs have a default for n_times_per_input, but read n_reps."""
    repeats: int = config.get("n_reps", config.get("n_times_per_input", 100))
    return repeats


def _notes(config: dict[str, Any]) -> list[str]:
    notes = []
    if "dtr_torch_cmd" in config:
        notes.append("dtr_torch_cmd is ignored: iotwin needs no patched PyTorch")
    if "log_dest" in config:
        notes.append("log_dest is ignored: logs are written to the folder logs of the results")
    if "sync_gpu" not in config:
        notes.append("sync_gpu is missing: true is assumed")
    if "n_reps" not in config:
        notes.append(f"n_reps is missing: {_repeats(config)} is assumed")
    return notes


def _commands(where: str, model: str, given: Any, default: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the commands of a model with their defaults. Raises UsageError that names the key if one is not valid."""
    if model not in MODELS:
        raise UsageError(f"{where}: unknown model '{model}'{nearest(model, list(MODELS))}")
    if not isinstance(given, list):
        raise UsageError(f"{where} must be a list of commands (got {keys.shown(given)})")
    return [_command(f"{where}[{index}]", model, each, default) for index, each in enumerate(given)]


def _command(where: str, model: str, given: Any, default: dict[str, Any]) -> dict[str, Any]:
    keys.check_table(where, given, _COMMAND, lists=True)
    extra = given.get("extra_params", {})
    sizes = {**sizes_of(model, "paper"), **dict.fromkeys(_other_sizes(model))}
    keys.check_table(f"{where}.extra_params", extra, {**dict.fromkeys(sizes, keys.NUMBER), **_MISPLACED, **_RETRY})
    if given.get("type") is None:
        raise UsageError(f"{where}: type is missing: it must be baseline or dtr")
    if given["type"] == "baseline":
        command = {**given, "batch_size": given.get("batch_size", default.get("batch_size", _DEFAULT_BATCH))}
    else:
        misplaced = {key: extra[key] for key in _MISPLACED if key in extra and key not in given}
        command = {**given, **misplaced}
        command |= {key: value for key, value in default.items() if key not in command}
        command.setdefault("batch_size", _DEFAULT_BATCH)
        _check_budget(where, command)
    _check_depth(where, model, command)
    return command


def _check_budget(where: str, command: dict[str, Any]) -> None:
    if command.get("kind") is None:
        raise UsageError(f"{where}: kind is missing: it must be one of {', '.join(KINDS)}")
    kinds = command["kind"] if isinstance(command["kind"], list) else [command["kind"]]
    for kind in kinds:
        if _REQUIRED[kind] not in command:
            raise UsageError(f"{where}: {_REQUIRED[kind]} is missing: a command of the kind {kind} requires it")
    if "ratio" in kinds:
        command["memory_budget"] = -1.0  # until the peak of the baseline is known


def _other_sizes(model: str) -> tuple[str, ...]:
    """Return the keys of extra_params that do not give a size of iotwin's model (see `Setting.model_words`)."""
    return ("input_size",) if model in ("lstm", "gru", "treelstm") else ()


def _check_depth(where: str, model: str, command: dict[str, Any]) -> None:
    """Raise UsageError if a tree LSTM would have more nodes than any machine can hold."""
    extra = command.get("extra_params", {})
    sizes = command["batch_size"] if isinstance(command["batch_size"], list) else [command["batch_size"]]
    depths = [extra["dep"]] if "dep" in extra else sizes
    if model == "treelstm" and max(depths) > _MOST_DEPTH:
        raise UsageError(
            f"{where}.batch_size is the depth of the tree unless extra_params has dep; it must be at most {_MOST_DEPTH} "
            f"(got {max(depths)})"
        )
