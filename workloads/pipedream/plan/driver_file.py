"""Reads and checks a driver's YAML file, and builds the commands that start its ranks.

A driver file names a conf.json, which assigns ranks to stages. If this conf.json does not exist, the number of ranks comes from a
table of the conf.json files that PipeDream ships.
"""

import os
import re
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workload_yaml.keys_and_types import TRUTHS
from iotwin.workload_yaml.yaml12 import parse, read_text
from iotwin.workloads.pipedream.plan.plan_file import read_plan
from iotwin.workloads.policies.pipeline import PipelinePlan

_REQUIRED = ("log_directory", "module", "data_dir", "container", "machines", "model_type", "distributed_backend")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("log_directory", "module", "data_dir", "container", "config_file"), (str,)),
    **dict.fromkeys(("model_type", "distributed_backend", "learning_rate_policy"), (str,)),
    "machines": (list,),
    **dict.fromkeys(("batch_size", "epochs", "print_frequency", "verbose_frequency"), (int,)),
    **dict.fromkeys(("learning_rate", "weight_decay"), (int, float)),
    **dict.fromkeys(("no_input_pipelining", "lr_warmup", "synthetic_data", "recompute", "macrobatch"), (bool,)),
    **dict.fromkeys(("compress_activations", "compress_in_gpu", "translation_model"), (bool, str)),  # keys that have no effect
}
_CHOICES = {
    "model_type": ("image_classification", "translation", "speech_to_text"),
    "distributed_backend": ("gloo", "nccl"),
    "learning_rate_policy": ("step", "polynomial", "exponential_decay"),
}
_POSITIVE = ("batch_size", "epochs", "print_frequency")
_LOCAL = ("localhost", "127.0.0.1")
CONTAINER_NAME = "--name"  # docker's option for a container's name, by which the container is ended


@dataclass(frozen=True)
class Driver:
    """A driver file: its keys, its machines as (host, GPU), its number of ranks, and its problems as (key, text).

    `conf` is the path of its conf.json, None if there is no such file; `plan` is the plan in it, if it is valid.
    """

    path: Path
    keys: dict[str, Any]
    machines: list[tuple[str, int]] = field(default_factory=list)
    ranks: int | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)
    conf: Path | None = None

    @property
    def plan(self) -> PipelinePlan | None:
        """Return the plan in the conf.json; None if there is no such file."""
        return read_plan(self.conf) if self.conf else None

    def processes(self, launch: "Launch") -> list[tuple[str, list[int]]]:
        """Return (host, ranks) of each process to start. A process is one rank, or a container with all ranks of a host."""
        if launch.single_container and not launch.local:
            hosts = dict.fromkeys(host for host, _ in self.machines)
            return [(host, _ranks_on(self, host)) for host in hosts]
        return [("localhost" if launch.local else host, [rank]) for rank, (host, _) in enumerate(self.machines)]

    def document(self) -> dict[str, Any]:
        """Return the JSON object for this file in the output of ``iotwin pipedream validate``."""
        problems = [{"key": key, "text": text} for key, text in self.problems]
        return {
            "file": str(self.path),
            "valid": not problems,
            "ranks": self.ranks,
            "machines": len(self.machines),
            "problems": problems,
        }


def read_driver(path: Path, models: Path | None = None) -> Driver:
    """Read a driver file and list all its problems. Its conf.json is searched for in `models` and in the driver file's folder."""
    text = read_text(path)
    try:
        content = parse(text, "the file")
    except UsageError as error:
        return Driver(path, {}, problems=[("", str(error))])
    if not isinstance(content, dict):
        return Driver(path, {}, problems=[("", "the file holds no keys; write KEY: VALUE lines")])
    keys = {str(key): _meant(str(key), value) for key, value in content.items()}
    problems = [problem for key, value in keys.items() for problem in _key_problems(key, value)]
    problems += [(key, "is required and missing") for key in _REQUIRED if key not in keys]
    machines, wrong = _machines(keys.get("machines"))
    conf = _conf_path(path, keys.get("config_file"), models)
    ranks, conf_problem = _conf_ranks(conf, keys.get("config_file"))
    problems += [*wrong, *conf_problem]
    if ranks is not None and machines and ranks != len(machines):
        problems.append(("machines", f"{len(machines)} machines are listed, {keys['config_file']} is for {ranks} ranks"))
    return Driver(path, keys, machines, ranks if ranks is not None else len(machines) or None, problems, conf)


def _meant(key: str, value: Any) -> Any:
    """Return `value`. If `key` is boolean, words like yes and off are converted to the bool that they mean in YAML 1.1."""
    return TRUTHS.get(value.lower(), value) if isinstance(value, str) and bool in _TYPES.get(key, ()) else value


def _key_problems(key: str, value: Any) -> list[tuple[str, str]]:
    if key not in _TYPES:
        return [(key, f"is no key of a driver file{nearest(key, list(_TYPES))}")]
    wanted = _TYPES[key]
    if type(value) not in wanted:
        return [(key, f"is {value!r}; it must be {' or '.join(each.__name__ for each in wanted)}")]
    if key in _CHOICES and value not in _CHOICES[key]:
        return [(key, f"is '{value}', none of {', '.join(_CHOICES[key])}{nearest(value, list(_CHOICES[key]))}")]
    if key in _POSITIVE and value < 1:
        return [(key, f"is {value}; it must be at least 1")]
    if key in ("learning_rate", "weight_decay") and not 0 <= value < float("inf"):
        return [(key, f"is {value}; it must be finite and not negative")]
    if key in ("log_directory", "data_dir") and ":" in value:
        return [(key, f"is '{value}'; a path with a colon cannot be mounted into a container")]
    return []


def _machines(listed: Any) -> tuple[list[tuple[str, int]], list[tuple[str, str]]]:
    """Return the listed machines as (host, GPU), and the problems of the list."""
    if not isinstance(listed, list):
        return [], []
    if not listed:
        return [], [("machines", "lists none; write HOST:GPU for each rank")]
    found: list[tuple[str, int]] = []
    problems = []
    for entry in listed:
        match = re.fullmatch(r"([A-Za-z0-9_.\-\[\]:]+):(\d+)", str(entry))
        if not match:
            problems.append(("machines", f"'{entry}' is not HOST:GPU"))
        elif (machine := (match[1], int(match[2]))) in found:
            problems.append(("machines", f"'{entry}' is listed twice; a GPU takes one rank"))
        else:
            found.append(machine)
    return found, problems


def _conf_path(path: Path, config_file: Any, models: Path | None) -> Path | None:
    """Return the path of the conf.json that a driver file names, in `models` or in the driver file's folder; None if missing."""
    for folder in (models, path.parent):
        if not folder or not isinstance(config_file, str):
            continue
        if os.path.isfile(folder / config_file):  # noqa: PTH113 - False, not OSError, of a name that is too long
            return folder / config_file
    return None


def _conf_ranks(conf: Path | None, config_file: Any) -> tuple[int | None, list[tuple[str, str]]]:
    """Return (number of ranks in the conf.json that a driver file names, None if unknown; problems of this conf.json)."""
    if conf is not None:
        return _ranks_of(conf, config_file)
    if not isinstance(config_file, str):
        return None, []
    shipped = read_foreign_json(Path(__file__).parent / "shipped_confs.json")
    if config_file not in shipped:
        return None, [("config_file", f"{config_file} is neither in the folder of the file nor below --models")]
    if shipped[config_file] is None:
        return None, [("config_file", f"{config_file}, as the original ships it, is not JSON")]
    return _too_many(sum(shipped[config_file]), config_file)


def _ranks_of(conf: Path, config_file: str) -> tuple[int | None, list[tuple[str, str]]]:
    try:
        return _too_many(read_plan(conf).ranks, config_file)
    except IotwinError as error:
        return None, [("config_file", str(error))]


def _too_many(ranks: int, name: str) -> tuple[int, list[tuple[str, str]]]:
    """Return `ranks`, and a problem if the conf.json is in a folder ``gpus=N`` whose N is less than `ranks`."""
    match = re.search(r"gpus=(\d+)", name)
    if match and ranks > int(match[1]):
        return ranks, [("config_file", f"{name} has {ranks} ranks, its folder is for {match[0]}")]
    return ranks, []


def conf_document(path: Path) -> dict[str, Any]:
    """Check the conf.json at `path`, and return what ``iotwin pipedream validate`` prints of it, as a JSON object."""
    ranks, problems = _ranks_of(path, path.name if "gpus=" in path.name else str(path))
    return {
        "file": str(path),
        "valid": not problems,
        "ranks": ranks,
        "machines": None,
        "problems": [{"key": key, "text": text} for key, text in problems],
    }


@dataclass(frozen=True)
class Launch:
    """How to start the ranks. `local`: without ssh and containers. `single_container`: one container per host for all its ranks.

    `directory` is for checkpoints. `resume` is the checkpoint to resume from. `mounts` are further paths for the containers.
    """

    directory: Path
    resume: str | None = None
    local: bool = False
    single_container: bool = False
    mounts: tuple[str, ...] = ()

    def at(self, directory: Path) -> "Launch":
        """Return the same launch with another directory."""
        return replace(self, directory=directory)


def commands(driver: Driver, launch: Launch) -> list[list[str]]:
    """Return the command of each process as a list of arguments. A process is a rank, or all ranks of a host in one container.

    Raises UsageError if the driver file has a problem or a mounted path has a colon.
    """
    if driver.problems:
        key, text = driver.problems[0]
        raise UsageError(f"{driver.path}: {key}: {text}" if key else f"{driver.path}: {text}")
    for mount in launch.mounts:
        if ":" in mount:
            raise UsageError(f"--mount-directories: '{mount}' has a colon, which docker takes for a separator; rename it")
    return [_on_host(driver, launch, host, ranks) for host, ranks in driver.processes(launch)]


def _ranks_on(driver: Driver, host: str) -> list[int]:
    return [rank for rank, (own, _) in enumerate(driver.machines) if own == host]


def _on_host(driver: Driver, launch: Launch, host: str, ranks: list[int]) -> list[str]:
    program = _program(driver, launch, ranks)
    if launch.local:
        return program
    gpus = ",".join(str(driver.machines[rank][1]) for rank in ranks)
    mounted = dict.fromkeys((driver.keys["data_dir"], driver.keys["log_directory"], *launch.mounts))
    volumes = [part for path in mounted for part in ("-v", f"{path}:{path}")]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"iotwin-{launch.directory.name}-rank-{ranks[0]}")
    contained = ["docker", "run", "--rm", CONTAINER_NAME, name, "--net=host", "--ipc=host", "--gpus", f'"device={gpus}"',
                 *volumes, driver.keys["container"], *program]  # fmt: skip
    return contained if host in _LOCAL else ["ssh", "-n", host, shlex.join(contained)]


def _program(driver: Driver, launch: Launch, ranks: list[int]) -> list[str]:
    keys = driver.keys
    local = [_ranks_on(driver, driver.machines[rank][0]).index(rank) for rank in ranks]
    ends = ["--rank", *map(str, ranks), "--local-rank", *map(str, local)]
    python = sys.executable if launch.local else "python3"
    master = "127.0.0.1" if launch.local else driver.machines[0][0]
    program = [python, "-m", "iotwin.workloads.pipedream", "--module", keys["module"], "--data-dir", keys["data_dir"],
               "--distributed-backend", keys["distributed_backend"], "--master-addr", master,
               "--checkpoint-dir", f"{launch.directory}", *ends]  # fmt: skip
    if "config_file" in keys:  # the copy in the run's folder, which all hosts share
        program += ["--config-path", str(launch.directory / Path(keys["config_file"]).name)]
    options = {"batch_size": "--batch-size", "learning_rate": "--lr", "weight_decay": "--wd",
               "learning_rate_policy": "--lr-policy", "epochs": "--epochs", "print_frequency": "--print-freq",
               "verbose_frequency": "--verbose-frequency"}  # fmt: skip
    program += [part for key, option in options.items() if key in keys for part in (option, str(keys[key]))]
    switches = ("no_input_pipelining", "lr_warmup", "synthetic_data", "recompute", "macrobatch")
    program += [f"--{key.replace('_', '-')}" for key in switches if keys.get(key)]
    per_host = max(len(_ranks_on(driver, host)) for host, _ in driver.machines)
    program += ["--num-ranks-in-server", str(per_host)]
    return [*program, "--resume", launch.resume] if launch.resume else program
