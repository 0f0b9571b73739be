"""Makes the workload of a pipeline's plan, with the planned times and checkpoints, on an existing data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.common.errors import UsageError
from iotwin.workloads.policies.pipeline import CHECKPOINTS_KEPT

if TYPE_CHECKING:
    from iotwin.workload_yaml import CheckpointFile, Config
    from iotwin.workload_yaml.schema import PipelineStage
    from iotwin.workloads.policies.pipeline import PipelinePlan

_FORMATS = {".tfrecord": "tfrecord", ".npz": "npz", ".npy": "npy", ".hdf5": "hdf5", ".jpeg": "jpeg", ".png": "png"}
_MANIFEST_BYTES, _LATEST_BYTES = 900, 8  # sizes of a store's small files
# Bytes of the file that lists a stage's tensors: without tensors; for each weight with its momentum; if layers are unknown.
_INDEX_BYTES, _WEIGHT_BYTES, _UNKNOWN_INDEX_BYTES = 138, 258, 3000
_WITH_WEIGHT_AND_BIAS = ("Conv", "Linear", "BatchNorm", "LayerNorm", "GroupNorm")  # kinds of layers


@dataclass(frozen=True)
class PipelineTraining:
    """How a plan is trained. `minibatches` are those of an epoch (None: all data), `workers` the loaders of each rank.

    `load_s`: seconds in which a loader reads and decodes a minibatch, as `iotwin pipedream profile` measures them.
    """

    batch_size: int
    minibatches: int | None = None
    epochs: int = 1
    eval_batch_size: int = 100  # as the training program's
    workers: int = 1
    load_s: float = 0.0


def pipeline_twin(plan: "PipelinePlan", data: Path, training: PipelineTraining) -> "Config":
    """Return the workload of `plan` on the data set in the folder `data`. Raises UsageError if the folder has no data set.

    The workload reads and writes as `python -m iotwin.workloads.pipedream` does. It evaluates if `data` has validation images.
    """
    from iotwin.workload_yaml import Config
    from iotwin.workload_yaml.schema import Pipeline

    config = Config()
    config.model.name = "pipeline"
    config.workflow.checkpoint = True
    config.reader.batch_size, config.reader.sample_shuffle = training.batch_size, "seed"
    config.reader.read_threads = training.workers
    sample_s = training.load_s / training.batch_size
    config.reader.preprocess_time = config.twin.evaluation.preprocess_time = sample_s
    config.train.epochs = training.epochs
    depth = {str(stage): warm_up for stage, warm_up in plan.depth.items()}
    schedule: Any = plan.schedule
    config.twin.pipeline = Pipeline(stages_of(plan), None, schedule, depth, training.minibatches)
    checkpoint = config.twin.checkpoint
    checkpoint.files, checkpoint.commit, checkpoint.directory_sync = _store_files(plan), "folder", True
    checkpoint.keep = CHECKPOINTS_KEPT
    config.twin.assumptions = [
        "times, sizes and order are the plan's; no job was traced",
        "a checkpoint holds parameters and as much optimizer state",
    ]
    config.dataset.data_folder = str(data)
    _choose_files(config, data)
    if config.workflow.evaluation:
        size = config.reader.batch_size_eval = min(training.eval_batch_size, len(config.twin.eval_files or ()))
        for own, stage in zip(config.twin.pipeline.stages, plan.stages, strict=True):
            own.evaluation_s = stage.forward_s * size / training.batch_size
    return config


def stages_of(plan: "PipelinePlan") -> "list[PipelineStage]":
    """Return the stages of `plan` as the section twin.pipeline of a workload lists them."""
    from iotwin.workload_yaml.schema import PipelineStage

    return [
        PipelineStage(
            list(stage.ranks),
            stage.forward_s,
            stage.backward_s,
            stage.all_reduce_s,
            stage.receive_s,
            int(stage.input_bytes),
        )
        for stage in plan.stages
    ]


def expand_plan(config: "Config") -> None:
    """Replace `twin.pipeline.plan`, if the workload has it, by the plan's stages, schedule and depth.

    Raises UsageError if the file is no plan.
    """
    from iotwin.workloads.pipedream.plan.plan_file import read_plan

    section = config.twin.pipeline
    if section is None or section.plan is None:
        return
    plan = read_plan(Path(section.plan))
    section.stages, section.plan = stages_of(plan), None
    for own, stage in zip(section.stages, plan.stages, strict=True):
        own.checkpoint_bytes = int(2 * stage.parameter_bytes)
    schedule: Any = section.schedule or plan.schedule
    section.schedule = schedule
    section.depth = section.depth or {str(stage): warm_up for stage, warm_up in plan.depth.items()}
    missing = [stage.stage for stage in plan.stages[1:] if not stage.input_bytes]
    if section.link_bytes_per_s is not None and missing:
        raise UsageError(f"twin.pipeline.link_bytes_per_s: the plan's stage {missing[0]} has no input_bytes; leave it out")


def _store_files(plan: "PipelinePlan") -> "list[CheckpointFile]":
    """Return the files of a checkpoint in iotwin's store, to which the first rank of each stage writes its stage."""
    from iotwin.workload_yaml import CheckpointFile

    found = []
    for stage in plan.stages:
        rank, name = stage.ranks[0], f"step-{{step}}/rank-{stage.stage}"
        size = int(2 * stage.parameter_bytes)
        if size:
            found.append(CheckpointFile(f"{name}.raw", [(size, 1)], fsync=True, looked_at="opened", rank=rank))
        layers = sum(kind.startswith(_WITH_WEIGHT_AND_BIAS) for kind in stage.kinds)
        index = _INDEX_BYTES + 2 * layers * _WEIGHT_BYTES if stage.kinds else _UNKNOWN_INDEX_BYTES
        checked: list[tuple[int, int]] = [(0, index), (index, 0)] * 2
        found.append(CheckpointFile(f"{name}.json", [(index, 1)], fsync=True, read_back=checked, looked_at="opened", rank=rank))
    first = plan.stages[0].ranks[0]
    return [
        *found,
        CheckpointFile("step-{step}/manifest.json", [(_MANIFEST_BYTES, 1)], fsync=True, looked_at="read", rank=first),
        CheckpointFile("LATEST", [(_LATEST_BYTES, 1)], fsync=True, rename=True, rank=first),
    ]


def _choose_files(config: "Config", data: Path) -> None:
    """Set the files that the workload reads: the files of a known data set, else every file in `data` as one sample."""
    names = sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file() and not path.name.startswith("."))
    names = [name for name in names if not name.endswith((".json", ".txt"))]
    if not names:
        raise UsageError(f"{data} holds no data set; iotwin generate writes one")
    if all(Path(name).name.startswith("case_") for name in names):
        config.twin.layout = "unet3d"
        config.dataset.format = "npy"
        return
    suffix = Path(names[0]).suffix.lower()
    train = [name for name in names if name.startswith("train/")]
    if suffix == ".jpeg" and train:
        _choose_images(config, data, train, [name for name in names if name.startswith("val/")])
        return
    config.dataset.format = _FORMATS.get(suffix, "npy")
    if config.dataset.format != "tfrecord":
        config.twin.layout, config.twin.train_files = "npy", names


def _choose_images(config: "Config", data: Path, train: list[str], evaluated: list[str]) -> None:
    """Let the workload read each image whole: by one call for the content, and one that finds the end of the file."""
    config.dataset.format = "bin"
    config.twin.train_files, config.twin.eval_files = train, evaluated or None
    config.dataset.num_files_train, config.dataset.num_files_eval = len(train), len(evaluated) or None
    sizes = [(data / name).stat().st_size for name in [*train, *evaluated]]
    config.dataset.record_length_bytes = sum(sizes) // len(sizes)
    config.twin.reader.read_sizes = [max(sizes) + 1, 0]
    config.workflow.evaluation = bool(evaluated)
