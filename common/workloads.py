"""The registry of the real workloads. It holds what `iotwin run`, generate, scale, images and plot need about each."""

from dataclasses import dataclass
from typing import Literal

from iotwin.common.errors import UsageError, nearest

EMULATED = "emulated"  # name of the variant that runs the emulator with the workload's twin instead of the workload


@dataclass(frozen=True)
class Workload:
    """One real training job, the program ``python -m workloads.NAME``."""

    name: str
    framework: Literal["torch", "tensorflow"]
    # Program that starts several ranks: torchrun, or iotwin.workloads.launch ("launch"). None: a single process uses all GPUs.
    launcher: Literal["torchrun", "launch", None]
    has_loader_processes: bool = False  # True if the job has the option --workers
    variants: tuple[str, ...] = ("original", "instrumented", "sleep", EMULATED)
    other_names: tuple[str, ...] = ()  # used by the scripts of the paper artifact

    def launch_words(self, ranks: int) -> list[str]:
        """Return the command-line words between ``python -m`` and the program that start `ranks` ranks on this machine."""
        if ranks == 1 or self.launcher is None:
            return []
        if self.launcher == "launch":
            return ["iotwin.workloads.launch", str(ranks)]
        address = ["--standalone", "--local-addr", "127.0.0.1"]
        return ["torch.distributed.run", *address, "--nproc-per-node", str(ranks), "--module"]


_ALL = (
    Workload("unet3d", "torch", "torchrun", has_loader_processes=True, other_names=("imseg",)),
    Workload("bert", "tensorflow", "launch", variants=("original", "instrumented", "sleep", "profiler", EMULATED)),
    Workload("dlrm", "torch", None),
    Workload("checkfreq", "torch", "torchrun", has_loader_processes=True, variants=("original", "instrumented")),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
NAMES = {name: workload.name for workload in _ALL for name in (workload.name, *workload.other_names)}  # maps every known name


def workload_named(name: str) -> Workload:
    """Return the workload called `name`. If there is none, raises a UsageError that suggests the nearest name."""
    if name not in WORKLOADS:
        raise UsageError(f"unknown workload '{name}'{nearest(name, list(WORKLOADS))}; known: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
