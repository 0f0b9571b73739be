"""Measures, within a job, what its checkpoints cost on this machine. A cache holds the result for later jobs of the same key."""

import hashlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from iotwin.common.errors import IotwinError
from iotwin.common.files import file_system_of, make_folder, write_json
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.manager import CFManager
from iotwin.workloads.policies.adaptive_interval import CheckpointProfile, IntervalPlan
from iotwin.workloads.state.snapshot_writer import PROCESS, THREAD, Persisted
from iotwin.workloads.state.tracked_objects import State

# The iterator's first WARM_UP calls are not measured. In its call DECIDED, the interval between checkpoints is planned.
WARM_UP, DECIDED = 5, 100
_CACHE_VERSION = 3


class MeasuredCosts:
    """A checkpoint profile, and the worker (THREAD or PROCESS) whose writes slow training less than the other's."""

    def __init__(self, profile: CheckpointProfile, worker: str, from_cache: bool = False) -> None:
        self.profile, self.worker, self.from_cache = profile, worker, from_cache

    def document(self) -> State:
        """Return the profile as a JSON document with the paper's symbols, for result.json."""
        own = self.profile
        return {
            "Ti_s": own.iteration_s,
            "Tw_s": own.update_s,
            "Tc_s": own.host_copy_s,
            "Tg_s": own.device_copy_s,
            "Ts_s": own.write_s,
            "besides_s": own.besides_s,
            "interference_s": own.interference_s,
            "m_bytes": own.size_bytes,
            "M_bytes": own.memory_used_bytes,
            "Mmax_bytes": own.memory_total_bytes,
            "from_cache": self.from_cache,
        }


def measure(manager: CFManager, iteration_s: float, additional: State, **where: Any) -> MeasuredCosts | None:
    """Take checkpoints with both kinds of snapshot and both workers. Return their costs on rank 0, None on other ranks.

    The written checkpoints remain valid, with the reason "profile". The first call of each kind is not timed, because it also
    allocates memory or starts the writer process. `iteration_s`: seconds of a step without checkpoints.
    """
    for _ in range(2):
        host = manager.save_cpu(additional, profile_snap=True, reason="profile", **where)
    for _ in range(2):
        at_once = manager.save(additional, profile_snap=True, reason="profile", **where)
    taken_s: dict[str, float] = {}  # by worker: seconds of CPU time that other threads of this process used during the call
    written: dict[str, Persisted] = {}
    for worker in manager.workers:
        for _ in range(2):  # the first checkpoint also starts the process
            begin_s = time.process_time() - time.thread_time()
            manager.save(additional, profile_full=True, use_thread=worker == THREAD, reason="profile", **where)
            taken_s[worker] = time.process_time() - time.thread_time() - begin_s
        if manager.persisted:
            written[worker] = manager.persisted[-1]
    if manager.rank:
        return None
    worker = min(taken_s, key=lambda each: taken_s[each])
    interference_s = taken_s[worker]
    if worker == PROCESS and not torch.cuda.is_available():  # without a GPU, the writer process takes CPU time from training
        interference_s += written[worker].cpu_s
    profile = CheckpointProfile(
        iteration_s, manager.update_s, host.snapshot_s, at_once.snapshot_s, written[worker].write_s, written[worker].size_bytes,
        *memory(), besides_s=max(host.call_s, at_once.call_s - at_once.snapshot_s), interference_s=interference_s,
    )  # fmt: skip
    return MeasuredCosts(profile, worker)


def memory() -> tuple[int, int]:
    """Return (peak in use, size) of the CUDA device's memory in bytes; without a CUDA device, of host memory."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {words[0]: int(words[1]) << 10 for words in lines}
    return sizes["MemTotal:"] - sizes["MemAvailable:"], sizes["MemTotal:"]


def key(chk: CFCheckpoint, directory: Path, world_size: int, job: State) -> State:
    """Return the values in which two jobs must agree to share a cached profile."""
    shapes = hashlib.sha256()
    for name, each in chk.tracked.items():
        shapes.update(type(each).__name__.encode())
        # An optimizer only adds its type, since its state is empty before the first update.
        for path, shape in () if isinstance(each, torch.optim.Optimizer) else _shapes(each.state_dict()):
            shapes.update(f"{name}.{path} {shape} ".encode())
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu {torch.get_num_threads()}"
    number = directory.stat().st_dev
    disk = f"{file_system_of(directory)} {os.major(number)}:{os.minor(number)}"
    return {
        "version": _CACHE_VERSION,
        "state": shapes.hexdigest(),
        "device": device,
        "file_system": disk,
        "world_size": world_size,
        "job": job,
    }


def _shapes(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, torch.Tensor):
        return [(path, f"{value.dtype} {tuple(value.shape)}")]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for name, each in pairs for found in _shapes(each, f"{path}.{name}")]


def _cache_file(folder: Path, key: State) -> Path:
    return folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.json"


def remember(folder: Path, key: State, measured: MeasuredCosts, plan: IntervalPlan) -> None:
    """Write a profile and its planned interval to the cache `folder`. If the folder is unwritable, do nothing."""
    try:
        make_folder(folder)
        document = {"key": key, "profile": asdict(measured.profile), "worker": measured.worker, "interval": plan.interval}
        write_json(_cache_file(folder, key), document)
    except OSError:
        return


def recall(folder: Path, key: State) -> MeasuredCosts | None:
    """Return the profile that `remember` wrote to the cache under the same `key`; None if there is none or it is unreadable."""
    try:
        document = read_foreign_json(_cache_file(folder, key))
        if document["key"] != key or document["worker"] not in (THREAD, PROCESS):
            return None
        return MeasuredCosts(CheckpointProfile(**document["profile"]), document["worker"], from_cache=True)
    except (IotwinError, OSError, ValueError, TypeError, KeyError):
        return None


def recall_theirs(folder: Path, arch: str, batch_size: int) -> tuple[int, str, str] | None:
    """Return (interval, snapshot, worker) from the file .cache_ARCH_BATCH of CheckFreq's own code, None if there is none."""
    try:
        document = read_foreign_json(folder / f".cache_{arch}_{batch_size}")
        interval = int(document["chk_freq"])
        return (
            max(1, interval),
            "host" if document["self._chk_fn"] == "cpu" else "device",
            THREAD if document["self._use_thread"] in (True, "True", "true", 1) else PROCESS,
        )
    except (IotwinError, OSError, ValueError, TypeError, KeyError):
        return None
