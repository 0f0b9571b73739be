"""Build the command that runs one cell of an experiment: the job, on this machine or in a container, under the tracer."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from iotwin.command_lines import own_command, own_job
from iotwin.common.errors import IotwinError
from iotwin.common.files import new_folder, write_whole
from iotwin.common.untrusted_files import MOST_JSON_BYTES, read_foreign
from iotwin.common.workloads import EMULATED, workload_named
from iotwin.loops.experiments.experiment import EMULATOR_IMAGE, Cell, Experiment
from iotwin.loops.experiments.host_check import count_gpus
from iotwin.workload_yaml.yaml12 import LARGEST_BYTES

_FIRST_ORDINARY_USER = 1000
_LABEL = "iotwin.cell"  # Docker label of a cell's container, whose value is the cell's directory
_DATA, _OUTPUT = Path("/data"), Path("/output")  # folders in a container


def trace_command(experiment: Experiment, cell: Cell, data: Path, directory: Path) -> list[str]:
    """Return the `iotwin trace` command that runs `cell` on `data` and writes trace/ and output/ to `directory`.

    Raises IotwinError if the machine has fewer GPUs than the cell has ranks, or if no step time is known for the cell.
    """
    emulated, workload = cell.variant == EMULATED, workload_named(cell.jobs.workload)
    if experiment.gpus and not emulated and count_gpus() < cell.ranks:
        raise IotwinError(f"it needs {cell.ranks} GPUs and this machine has {count_gpus()}")
    module = module_of(experiment, cell, data, directory)
    if experiment.container:
        # A container image already has an entry point, python -m or iotwin.
        job = module[1:] if emulated else [*workload.launch_words(cell.ranks), *module]
        return tracer_of(cell, directory / "trace", job, _container(experiment, cell, data, directory / "output"))
    return tracer_of(
        cell, directory / "trace", own_job(*(module if emulated else _isolated([*workload.launch_words(cell.ranks), *module])))
    )


def module_of(experiment: Experiment, cell: Cell, data: Path, directory: Path) -> list[str]:
    """Make the folder `directory`/output, and return the Python module of the cell's job, followed by its options."""
    output = directory / "output"
    new_folder(output)
    seen = _Folders(_DATA, _OUTPUT, output) if experiment.container else _Folders(data, output, output)
    return ["iotwin", *_emulator(cell, seen)] if cell.variant == EMULATED else _program(cell, seen, experiment.seed)


def tracer_of(cell: Cell, trace: Path, job: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """Return the command that writes the `trace` of `job`, the cell's command, with more `options` of `iotwin trace`."""
    command = own_command("trace", "-o", trace, "--json", "--grace", "5s", "--workload", cell.jobs.workload)
    return [*command, *options, "--", *job]


class _Folders(NamedTuple):
    """The data and output folders of a cell, as the job sees them. `outside` is the output folder's path on this machine."""

    data: Path
    output: Path
    outside: Path

    def put_file(self, name: str, content: bytes) -> str:
        """Write a file into the output folder and return its path as the job sees it."""
        write_whole(self.outside / name, content)
        return str(self.output / name)


def _container(experiment: Experiment, cell: Cell, data: Path, output: Path) -> list[str]:
    """Return the options of `iotwin trace` for the cell's container. The container has GPUs, but no network and no root user."""
    options = ["--image", image_of(experiment, cell), "--volume", f"{data}:{_DATA}:ro", "--volume", f"{output}:{_OUTPUT}"]
    # Loader processes deliver batches in shared memory, of which a container has 64 MB by default.
    user, label = _owner(output), json.dumps({_LABEL: str(output.parent)})
    for option in ("ipc_mode=host", "network_mode=none", f'user="{user}"', "environment={HOME: /tmp}", f"labels={label}"):
        options += ["--container-option", option]
    if experiment.gpus and cell.variant != EMULATED:
        options += ["--gpus", ",".join(map(str, range(cell.ranks)))]
    return options


def image_of(experiment: Experiment, cell: Cell) -> str:
    """Return the name of the container image that runs `cell`."""
    images = {EMULATED: EMULATOR_IMAGE, cell.jobs.workload: cell.jobs.workload + ":{variant}"} | experiment.images
    return images[EMULATED if cell.variant == EMULATED else cell.jobs.workload].replace("{variant}", cell.variant)


def remove_container(directory: Path) -> None:
    """Remove the container that a killed tracer left of the cell in `directory`, if any."""
    from iotwin.tracing_tools.targets.container import connect

    with suppress(IotwinError):  # without a running engine, there is no container
        for container in connect().containers.list(all=True, filters={"label": f"{_LABEL}={directory}"}):
            container.remove(force=True)


def _owner(output: Path) -> str:
    """Make the calling user, not root, the owner of `output`. Return UID:GID of that user, as whom a container's job runs."""
    user, group = (int(os.environ.get(f"SUDO_{kind}", own)) for kind, own in (("UID", os.getuid()), ("GID", os.getgid())))
    if user == 0:
        user = group = _FIRST_ORDINARY_USER
    if os.geteuid() == 0:
        os.chown(output, user, group)
    return f"{user}:{group}"


def _program(cell: Cell, seen: _Folders, seed: int) -> list[str]:
    """Return the module of the cell's workload and its options."""
    workload = workload_named(cell.jobs.workload)
    options = {"data": seen.data, "output": seen.output, "batch-size": cell.batch, "variant": cell.variant, "seed": seed}
    if workload.has_loader_processes:
        options["workers"] = cell.workers
    if cell.variant == "sleep":
        options["sleep"] = _sleep_model(cell, seen)
    words = [word for name, value in (options | cell.options).items() for word in _option(name, value)]
    return [f"iotwin.workloads.{workload.name}", *words]


def _isolated(program: list[str]) -> list[str]:
    """Return `program`, changed so that ranks started by PyTorch's launcher import nothing from the current directory either."""
    if "--module" not in program:
        return program
    at = program.index("--module")
    return [*program[:at], "--no-python", *own_job(program[at + 1]), *program[at + 2 :]]


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}", str(value)]


def _emulator(cell: Cell, seen: _Folders) -> list[str]:
    """Return the arguments after `iotwin`. The overrides of the experiment's YAML come last, so they take precedence."""
    workload, *overrides = cell.jobs.emulate
    if "=" not in workload:
        workload = seen.put_file("twin.yaml", _read(Path(workload)))
    own = {
        "dataset.data_folder": seen.data,
        "output.folder": seen.output,
        "checkpoint.checkpoint_folder": seen.output / "checkpoints",
        "reader.batch_size": cell.batch,
    }
    kind = workload_named(cell.jobs.workload)
    if kind.has_loader_processes:
        own["reader.read_threads"] = cell.workers
    ranks = ["--ranks", str(cell.ranks)]
    if kind.launcher is None:
        own["num_gpus"], ranks = cell.ranks, []
    words = [f"++workload.{key}={value}" for key, value in own.items()]
    return ["emulate", workload, "--instrument", *ranks, *words, *overrides]


def _read(twin: Path) -> bytes:
    try:
        return read_foreign(twin, LARGEST_BYTES)
    except OSError as error:
        raise IotwinError(f"the twin {twin}: {error.strerror}; give a YAML of iotwin fit, or workload=NAME") from None


def _sleep_model(cell: Cell, seen: _Folders) -> str:
    """Return the value of --sleep: the YAML's text, or the path of a file with step times.

    The file is a copy of the one that the YAML names, or holds the paper's step time for the cell's GPUs and batch size.
    """
    from iotwin.workload_yaml import MeasuredStepTime, StepTimeRegression
    from iotwin.workload_yaml.step_time_models import step_time

    workload: Any = cell.jobs.workload  # typed as Any: the constructors of the models below check the name
    text = str(cell.jobs.sleep)
    if text in ("measured", "regression"):
        model = MeasuredStepTime(workload=workload) if text == "measured" else StepTimeRegression(workload=workload)
        return seen.put_file("computation_time.json", msgspec.json.encode(step_time(model, cell.ranks, cell.batch)))
    if not Path(text).is_file():
        return text
    return seen.put_file("computation_time.json", read_foreign(Path(text), MOST_JSON_BYTES))
