"""Makes the workload of a pipeline's plan, with the planned times and checkpoints, on an existing data set."""

from pathlib import Path
from typing import TYPE_CHECKING

from iotwin.common.errors import UsageError

if TYPE_CHECKING:
    from iotwin.workload_yaml import Config
    from iotwin.workloads.policies.pipeline import PipelinePlan

_FORMATS = {".tfrecord": "tfrecord", ".npz": "npz", ".npy": "npy", ".hdf5": "hdf5", ".jpeg": "jpeg", ".png": "png"}


def pipeline_twin(plan: "PipelinePlan", data: Path, batch_size: int, minibatches: int | None, epochs: int) -> "Config":
    """Return the workload of `plan` on the data set in the folder `data`. Raises UsageError if the folder has no data set."""
    from iotwin.workload_yaml import Config
    from iotwin.workload_yaml.schema import Pipeline, PipelineStage

    config = Config()
    stages = [
        PipelineStage(
            list(stage.ranks),
            stage.forward_s,
            stage.backward_s,
            stage.all_reduce_s,
            stage.receive_s,
            int(2 * stage.parameter_bytes),
        )
        for stage in plan.stages
    ]
    config.model.name = "pipeline"
    config.workflow.checkpoint = True
    config.reader.batch_size, config.reader.sample_shuffle = batch_size, "seed"
    config.train.epochs = epochs
    depth = {str(stage): warm_up for stage, warm_up in plan.depth.items()}
    config.twin.pipeline = Pipeline(stages, plan.schedule, depth, minibatches)  # type: ignore[arg-type]
    config.twin.assumptions = [
        "times, sizes and order are the plan's; no job was traced",
        "a checkpoint holds parameters and as much optimizer state",
    ]
    config.dataset.data_folder = str(data)
    _choose_files(config, data)
    return config


def _choose_files(config: "Config", data: Path) -> None:
    """Set the files that the workload reads: the files of a known data set, else every file in `data` as one sample."""
    from iotwin.datagen.layouts import Unet3dLayout

    names = sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file() and not path.name.startswith("."))
    names = [name for name in names if not name.endswith((".json", ".txt"))]
    if not names:
        raise UsageError(f"{data} holds no data set; iotwin generate writes one")
    if Unet3dLayout.discover(data):
        config.twin.layout = "unet3d"
        config.dataset.format = "npy"
        return
    config.dataset.format = _FORMATS.get(Path(names[0]).suffix.lower(), "npy")
    if config.dataset.format != "tfrecord":
        config.twin.layout, config.twin.train_files = "npy", names
