"""Writes the weights of a converted model, and its code, to the folder of the conversion."""

from dataclasses import dataclass
from pathlib import Path

import torch

from iotwin.common.errors import UsageError
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.code import export_code
from iotwin.workloads.pipedream.converter.stages import planned_split, split
from iotwin.workloads.pipedream.converter.weights import load_state, read_state, stage_file, write_weights
from iotwin.workloads.policies.pipeline import PipelinePlan


@dataclass(frozen=True)
class ModelFolder:
    """The model of a conversion. Its weights come from the file `weights` or, if that is None, are random by `seed`."""

    plan: PipelinePlan
    arch: str
    preset: str
    classes: int | None = None
    seed: int = 1
    weights: Path | None = None

    def write(self, folder: Path, class_name: str | None = None) -> list[str]:
        """Write stage<i>.pt for each stage and, if `class_name` is given, the code. Return the names of the files.

        Raises UsageError if the plan or the weights are of another model.
        """
        torch.manual_seed(self.seed)
        built = build(self.arch, self.preset, self.classes)
        stage_of = planned_split(built.module, self.plan)
        if stage_of is None:
            raise UsageError(
                f"the graph's layers are not those of the model {self.arch} ({self.preset}); leave out --preset, or profile the "
                "model by iotwin pipedream profile"
            )
        if self.weights:
            load_state(built.module, read_state(self.weights), self.weights)
        model = split(built.module, stage_of)
        stages = [stage.module for stage in model.stages]
        files = []
        if class_name is not None:
            inputs = built.make_inputs(2)[: len(model.inputs)]
            files = export_code(built.module, model, class_name, self.arch, folder, inputs)
        write_weights(built.module, stages, folder)
        return [*files, *(stage_file(folder, index).name for index in range(len(stages)))]
