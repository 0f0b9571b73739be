"""Logs of the models of an experiment, for the simulator: one for each model, batch size and budget, with a manifest."""

import os
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder
from iotwin.workloads.dtr.experiments.config import DtrExperiment
from iotwin.workloads.dtr.experiments.settings import Setting
from iotwin.workloads.dtr.experiments.trials import Machine, reason_of_failure
from iotwin.workloads.dtr.simulator.log_manifest import LoggedModel, read_manifest, write_manifest


def write_log(setting: Setting, experiment: DtrExperiment, machine: Machine, folder: Path, stamp: str) -> None:
    """Write the log of a step of the last input to `folder`, and list it in the manifest there.

    Raises IotwinError if the step cannot be logged. Recomputed operations are not logged, so the budget does not matter.
    """
    make_folder(folder, below=folder.parent)
    batch, budget = setting.params["batch_size"], setting.params.get("memory_budget", -1)
    log = folder / f"{setting.model}-{batch}-{budget if budget > 0 else 'inf'}-{stamp}-default.log"
    model, samples = setting.model_words()
    warm_ups, _ = setting.steps(experiment)
    words = [
        "log", model, "-o", str(log), "--batch", str(samples), "--preset", machine.preset, "--device", machine.device,
        "--warm-up", str(warm_ups), "--seed", str(experiment.seed + setting.inputs(experiment) - 1),
    ]  # fmt: skip
    result = machine.call(words, setting.timeout_s, dict(os.environ))
    if result.status != 0:
        raise IotwinError(f"the log of {setting.model} cannot be written: {reason_of_failure(result, setting.timeout_s)}")
    manifest = folder / "manifest.json"
    listed = [each for each in read_manifest(manifest) if each.log.name != log.name] if manifest.is_file() else []
    title = f"{setting.model} ({batch})"
    write_manifest(manifest, [*listed, LoggedModel(log.stem, title, f"{model}, {samples} samples", log)])
