"""The command of one cell: the job, on this machine or in its container, under the tracer."""

import os
import re
import sys
from pathlib import Path

import msgspec

from iotwin.experiment import EMULATED, Cell, Experiment
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.output import write_whole

_PROGRAM_WORKERS = ("unet3d",)  # the workloads whose program has loader processes
_ONE_PROCESS = "dlrm"  # over all GPUs
_FIRST_ORDINARY_USER = 1000
_DATA, _OUTPUT = Path("/data"), Path("/output")  # as a container sees them


def trace_command(experiment: Experiment, cell: Cell, data: Path, directory: Path) -> list[str]:
    """Return the `iotwin trace` that runs `cell` on `data` and leaves trace/ and output/ in `directory`.

    Raises IotwinError when the machine has fewer GPUs than the cell has ranks, and for a step-time model that has no such cell.
    """
    output = directory / "output"
    output.mkdir()
    command = [sys.executable, "-m", "iotwin.main", "trace", "-o", str(directory / "trace"), "--quiet"]
    command += ["--workload", cell.jobs.workload]
    if experiment.gpus and count_gpus() < cell.ranks:
        raise IotwinError(f"it needs {cell.ranks} GPUs and this machine has {count_gpus()}")
    if cell.variant == EMULATED:
        return [*command, "--", *_emulator(cell, data, output)]
    sleep = _sleep_model(cell, output) if cell.variant == "sleep" else None
    if not experiment.container:
        return [*command, "--", sys.executable, "-m", *_program(cell, data, output, sleep, experiment.seed)]
    image = experiment.images.get(cell.jobs.workload, cell.jobs.workload + ":{variant}").replace("{variant}", cell.variant)
    command += ["--image", image, "--volume", f"{data}:{_DATA}:ro", "--volume", f"{output}:{_OUTPUT}"]
    # Loader processes hand batches over in shared memory, of which a container has 64 MB unless told otherwise.
    user = _owner(output)
    for option in ("ipc_mode=host", "network_mode=none", f'user="{user}"', "environment={HOME: /tmp}"):
        command += ["--container-option", option]
    if experiment.gpus:
        command += ["--gpus", ",".join(map(str, range(cell.ranks)))]
    inside = sleep if sleep is None or not sleep.startswith(str(output)) else str(_OUTPUT / Path(sleep).name)
    return [*command, "--", *_program(cell, _DATA, _OUTPUT, inside, experiment.seed)]


def _owner(output: Path) -> str:
    """Return the UID:GID that the job in a container runs as, never root: who called us or sudo; it is given `output`."""
    user, group = (int(os.environ.get(f"SUDO_{kind}", own)) for kind, own in (("UID", os.getuid()), ("GID", os.getgid())))
    if user == 0:
        user = group = _FIRST_ORDINARY_USER
    if os.geteuid() == 0:
        os.chown(output, user, group)
    return f"{user}:{group}"


def _program(cell: Cell, data: Path, output: Path, sleep: str | None, seed: int) -> list[str]:
    """Return what follows `python -m`: a launcher of ranks where there are several, the program, its options."""
    module, launcher = f"workloads.{cell.jobs.workload}", []
    if cell.ranks > 1 and cell.jobs.workload == "unet3d":
        launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        launcher += ["--nproc-per-node", str(cell.ranks), "--module"]
    elif cell.ranks > 1 and cell.jobs.workload == "bert":
        launcher = ["workloads.launch", str(cell.ranks)]
    options = {"data": data, "output": output, "batch-size": cell.batch, "variant": cell.variant, "seed": seed}
    if cell.jobs.workload in _PROGRAM_WORKERS:
        options["workers"] = cell.workers
    if sleep is not None:
        options["sleep"] = sleep
    words = [word for name, value in (options | cell.jobs.options).items() for word in _option(name, value)]
    return [*launcher, module, *words]


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}", str(value)]


def _emulator(cell: Cell, data: Path, output: Path) -> list[str]:
    """Return the emulator's command; what the cell names goes before the overrides of the YAML, which win."""
    workload, *overrides = cell.jobs.emulate
    own = {
        "dataset.data_folder": data, "output.folder": output, "checkpoint.checkpoint_folder": output / "checkpoints",
        "reader.batch_size": cell.batch,
    }  # fmt: skip
    if cell.jobs.workload in _PROGRAM_WORKERS:
        own["reader.read_threads"] = cell.workers
    ranks = ["--ranks", str(cell.ranks)]
    if cell.jobs.workload == _ONE_PROCESS:
        own["num_gpus"], ranks = cell.ranks, []
    words = [f"++workload.{key}={value}" for key, value in own.items()]
    return [sys.executable, "-m", "iotwin.main", "emulate", workload, "--instrument", *ranks, *words, *overrides]


def _sleep_model(cell: Cell, output: Path) -> str:
    """Return what --sleep is told: the YAML's own words, or a file with the paper's step time of this (GPUs, batch)."""
    from benchmark.config import Measured, Regression
    from benchmark.steptimes import step_time

    if cell.jobs.sleep not in ("measured", "regression"):
        return str(cell.jobs.sleep)
    workload = cell.jobs.workload
    model = Measured(workload=workload) if cell.jobs.sleep == "measured" else Regression(workload=workload)
    duration = step_time(model, cell.ranks, cell.batch)
    path = output / "computation_time.json"
    write_whole(path, msgspec.json.encode(duration))
    return str(path)


def count_gpus() -> int:
    """Return how many NVIDIA GPUs this machine has device files of."""
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").iterdir())
