"""Reads, checks and writes plan.json; reads PipeDream's conf.json."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_json, read_foreign_struct
from iotwin.workloads.policies.pipeline import SCHEDULES, PipelinePlan, Stage

VERSION = 1
MODULES = "modules.json"  # in the folder of a converted model


class _Stage(msgspec.Struct, forbid_unknown_fields=True):
    stage: int
    ranks: list[int]
    forward_s: float
    backward_s: float
    nodes: list[str] = []
    kinds: list[str] = []
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    all_reduce_s: float = 0.0
    receive_s: float = 0.0


class _Split(msgspec.Struct, forbid_unknown_fields=True):
    first: int
    last: int
    replicas: int


class _Level(msgspec.Struct, forbid_unknown_fields=True):
    machines: int
    bandwidth_bytes_per_s: float
    splits: list[_Split]


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    stages: list[_Stage]
    graph_sha256: str | None = None
    cost_model: str | None = None
    batch_size: int | None = None
    schedule: str = "1f1b"
    depth: dict[int, int] = {}
    levels: list[_Level] = []


class ConvertedModule(msgspec.Struct):
    """A module of a converted model: the tensors that it reads and makes, and the ids and kinds of its layers."""

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[str] = []
    kinds: list[str] = []


class ConvertedModel(msgspec.Struct):
    """The file modules.json: the name of the model's class, its architecture, and its modules. The last one is the loss.

    `preset` and `classes` are those of the model whose weights are in stage<i>.pt, None if there are none.
    """

    model: str
    arch: str
    modules: list[ConvertedModule]
    preset: str | None = None
    classes: int | None = None


class _ConfFile(msgspec.Struct):
    module_to_stage_map: list[int]
    stage_to_rank_map: dict[int, list[int]]
    stage_to_depth_map: dict[int, int] | None = None


def read_plan(path: Path) -> PipelinePlan:
    """Read a plan.json or conf.json. Raises UsageError if the file is invalid.

    A conf.json has no times, so each of its stages takes one second per minibatch, a third of it for the forward pass.
    """
    content = _json(path)
    if isinstance(content, dict) and "stage_to_rank_map" in content:
        return _plan_of_conf(content, path)
    return parse_plan(content, str(path))


def parse_plan(content: Any, where: str) -> PipelinePlan:
    """Return the plan in a JSON document. Raises UsageError if it is invalid; errors call the document `where`."""
    try:
        file = msgspec.convert(content, _PlanFile, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}; iotwin pipedream optimize writes such files") from None
    if file.version != VERSION:
        raise UsageError(f"{where}: version is {file.version}; this iotwin reads version {VERSION}")
    if file.schedule not in SCHEDULES:
        raise UsageError(f"{where}: schedule is '{file.schedule}', none of {', '.join(SCHEDULES)}")
    stages = []
    for index, stage in enumerate(file.stages):
        if stage.stage != index:
            raise UsageError(f"{where}: stages[{index}].stage is {stage.stage}; number stages from 0 in order")
        fields = msgspec.structs.asdict(stage)
        for name, value in fields.items():
            if name.endswith(("_s", "_bytes")) and not 0 <= value < float("inf"):
                raise UsageError(f"{where}: stages[{index}].{name} is {value}; it must be finite and not negative")
        if stage.kinds and len(stage.kinds) != len(stage.nodes):
            raise UsageError(f"{where}: stages[{index}] has {len(stage.nodes)} nodes and {len(stage.kinds)} kinds of nodes")
        lists = {name: tuple(fields[name]) for name in ("ranks", "nodes", "kinds")}
        stages.append(Stage(**{**fields, **lists}))
    check_ranks([stage.ranks for stage in stages], where)
    _check_depth(file.depth, len(stages), where)
    origin = {name: getattr(file, name) for name in ("graph_sha256", "cost_model")}
    origin["levels"] = [msgspec.to_builtins(level) for level in file.levels]
    return PipelinePlan(tuple(stages), file.schedule, file.depth, file.batch_size, origin)


def _plan_of_conf(content: dict[str, Any], path: Path) -> PipelinePlan:
    conf = parse_conf(content, str(path))
    layers = _layers(path, conf.module_to_stage_map)
    stages = tuple(
        Stage(stage, tuple(ranks), len(ranks) / 3, 2 * len(ranks) / 3, nodes=layers[stage][0], kinds=layers[stage][1])
        for stage, ranks in sorted(conf.stage_to_rank_map.items())
    )
    return PipelinePlan(stages, depth=conf.stage_to_depth_map or {}, origin={"conf": str(path), "modules": _modules(conf)})


def read_converted(folder: Path) -> ConvertedModel | None:
    """Return the modules.json of a folder that ``iotwin pipedream convert`` wrote, None if there is none."""
    path = folder / MODULES
    if not os.path.isfile(path):  # noqa: PTH113 - False, not OSError, of a name that is too long
        return None
    try:
        return read_foreign_struct(path, ConvertedModel)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _layers(path: Path, stage_of: list[int]) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the ids and kinds of each stage's layers, by the modules.json in the folder of a conf.json; none without it."""
    model = read_converted(path.parent)
    if model is None:
        return dict.fromkeys(stage_of, ((), ()))
    if len(model.modules) != len(stage_of):
        raise UsageError(
            f"{path}: module_to_stage_map has {len(stage_of)} modules, and modules.json in its folder has "
            f"{len(model.modules)}; convert the graph again"
        )
    found = {}
    for stage in stage_of:
        own = [module for module, each in zip(model.modules, stage_of, strict=True) if each == stage]
        nodes, kinds = (tuple(each for module in own for each in getattr(module, name)) for name in ("nodes", "kinds"))
        found[stage] = (nodes, kinds)
    return found


def _modules(conf: _ConfFile) -> list[int]:
    """Return the stage of each module of the model. The last entry of a conf.json is for the loss, unless it is the only one."""
    modules = conf.module_to_stage_map
    return modules[:-1] if set(modules[:-1]) == set(modules) else modules


def parse_conf(content: Any, where: str) -> _ConfFile:
    """Return the content of a conf.json. Raises UsageError unless ranks and stages count from 0 and each rank is in one stage."""
    try:
        conf = msgspec.convert(content, _ConfFile, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None
    stages = sorted(conf.stage_to_rank_map)
    if stages != list(range(len(stages))):
        raise UsageError(f"{where}: stage_to_rank_map has stages {stages}; number them from 0 without a gap")
    used = sorted(set(conf.module_to_stage_map))
    if used != stages:
        raise UsageError(f"{where}: module_to_stage_map uses stages {used}, stage_to_rank_map gives ranks to {stages}")
    check_ranks([conf.stage_to_rank_map[stage] for stage in stages], where)
    _check_depth(conf.stage_to_depth_map or {}, len(stages), where)
    return conf


def check_ranks(stages: Iterable[Iterable[int]], where: str) -> None:
    """Raise UsageError unless each of the ranks 0, 1, ... is in exactly one of `stages`, and each stage has a rank."""
    seen: dict[int, int] = {}
    for stage, ranks in enumerate(stages):
        count = len(seen)
        for rank in ranks:
            if rank in seen:
                raise UsageError(f"{where}: rank {rank} is in stage {seen[rank]} and in stage {stage}; a rank is in one stage")
            seen[rank] = stage
        if len(seen) == count:
            raise UsageError(f"{where}: stage {stage} has no ranks; give it one, or leave the stage out")
    missing = sorted(set(range(len(seen))) - seen.keys())
    if missing or not seen:
        raise UsageError(
            f"{where}: rank {missing[0] if missing else 0} is in no stage; ranks are 0 to {len(seen) - 1} without a gap"
        )


def _check_depth(depth: dict[int, int], stages: int, where: str) -> None:
    for stage, warm_up in depth.items():
        if not 0 <= stage < stages or warm_up < 0:
            raise UsageError(
                f"{where}: depth {warm_up} of stage {stage} is impossible: stages are 0 to {stages - 1}, depths at least 0"
            )


def _json(path: Path) -> Any:
    try:
        return read_foreign_json(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except IotwinError as error:
        raise UsageError(str(error)) from None


def plan_document(plan: PipelinePlan) -> dict[str, Any]:
    """Return the content of plan.json for a plan, as a JSON document."""
    depth = {str(stage.stage): plan.warm_up(stage.stage) for stage in plan.stages}
    origin = {name: plan.origin.get(name) for name in ("graph_sha256", "cost_model")}
    return {
        "version": VERSION,
        **origin,
        "batch_size": plan.batch_size,
        "stages": [
            {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(stage).items()}
            for stage in plan.stages
        ],
        "schedule": plan.schedule,
        "depth": depth,
        "levels": plan.origin.get("levels", []),
    }
