"""What a checkpoint of this job costs on this machine: measured inside the job, and remembered for the next one like it."""

import hashlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from common.files import file_system_of, write_json
from workloads.checkfreq.checkpoint import CFCheckpoint, State
from workloads.checkfreq.manager import CFManager
from workloads.checkfreq.persist import PROCESS, THREAD, Persisted
from workloads.policies.frequency import Plan, Profile

WARM_UP, DECIDED = 5, 100  # calls before the measured window, and the call after it
_CACHE_VERSION = 3


class MeasuredCosts:
    """A profile, who wrote at less expense of training, and the fingerprint it is remembered by."""

    def __init__(self, profile: Profile, worker: str, from_cache: bool = False) -> None:
        self.profile, self.worker, self.from_cache = profile, worker, from_cache

    def document(self) -> State:
        """Return it as result.json tells it."""
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
    """Take checkpoints of the job where it stands, both ways and by both workers; return on rank 0 what they cost.

    All that reach the store are whole, of the reason "profile". The first of each kind makes memory ready and does not count.
    """
    for _ in range(2):
        host = manager.save_cpu(additional, profile_snap=True, reason="profile", **where)
    for _ in range(2):
        at_once = manager.save(additional, profile_snap=True, reason="profile", **where)
    beside_s: dict[str, float] = {}  # processor time of this process beside the call: training would have had it
    written: dict[str, Persisted] = {}
    for worker in manager.workers:
        for _ in range(2):  # the process starts with the first
            begin_s = time.process_time() - time.thread_time()
            manager.save(additional, profile_full=True, use_thread=worker == THREAD, reason="profile", **where)
            beside_s[worker] = time.process_time() - time.thread_time() - begin_s
        if manager.persisted:
            written[worker] = manager.persisted[-1]
    if manager.rank:
        return None
    worker = min(beside_s, key=lambda each: beside_s[each])
    taken_s = beside_s[worker]
    if worker == PROCESS and not torch.cuda.is_available():  # the processors that it writes on are those that train
        taken_s += written[worker].cpu_s
    profile = Profile(
        iteration_s, manager.update_s, host.snapshot_s, at_once.snapshot_s, written[worker].write_s, written[worker].size_bytes,
        *memory(), besides_s=max(host.call_s, at_once.call_s - at_once.snapshot_s), interference_s=taken_s,
    )  # fmt: skip
    return MeasuredCosts(profile, worker)


def memory() -> tuple[int, int]:
    """Return the bytes of the device's memory in use at the most so far, and all it has; of the host without a CUDA device."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {words[0]: int(words[1]) << 10 for words in lines}
    return sizes["MemTotal:"] - sizes["MemAvailable:"], sizes["MemTotal:"]


# The cache


def key(chk: CFCheckpoint, directory: Path, world_size: int, job: State) -> State:
    """Return what two runs must share for a profile of one to be of use to the other."""
    shapes = hashlib.sha256()
    for name, each in chk.tracked.items():
        shapes.update(type(each).__name__.encode())
        # Of optimizers the name will do: their state comes with the first update.
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


def cache_folder() -> Path:
    """Return where profiles are remembered."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iotwin" / "checkfreq"


def _cache_file(folder: Path, found: State) -> Path:
    return folder / f"{hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:32]}.json"


def remember(folder: Path, found: State, measured: MeasuredCosts, plan: Plan) -> None:
    """Write a profile and what was planned from it; a folder that cannot be written costs the next run its profile, no more."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        document = {"key": found, "profile": asdict(measured.profile), "worker": measured.worker, "interval": plan.interval}
        write_json(_cache_file(folder, found), document)
    except OSError:
        return


def recall(folder: Path, found: State) -> MeasuredCosts | None:
    """Return the profile that was remembered by the key `found`, None without one."""
    try:
        document = json.loads(_cache_file(folder, found).read_bytes())
        if document["key"] != found or document["worker"] not in (THREAD, PROCESS):
            return None
        return MeasuredCosts(Profile(**document["profile"]), document["worker"], from_cache=True)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def recall_theirs(folder: Path, arch: str, batch_size: int) -> tuple[int, str, str] | None:
    """Return interval, snapshot ("cpu" or "gpu") and worker of the original's file .cache_ARCH_BATCH, None without one."""
    try:
        document = json.loads((folder / f".cache_{arch}_{batch_size}").read_bytes())
        interval = int(document["chk_freq"])
        return (
            max(1, interval),
            "host" if document["self._chk_fn"] == "cpu" else "device",
            THREAD if document["self._use_thread"] in (True, "True", "true", 1) else PROCESS,
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
