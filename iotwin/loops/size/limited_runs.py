"""Run a twin under limits of storage, each time from the same state of the page cache, and return its training figures."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import new_folder
from iotwin.common.progress import note
from iotwin.common.units import format_duration, format_size
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache_state import evict, fetch
from iotwin.loops.respond.limits_in_force import reading_of
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.targets.storage_limits import LimitedCgroups, Limits, device_below

# Ratios of reading time to training time from which on to warn and to refuse, after some seconds for evaluations and loaders'
# starts.
_WARNED, _REFUSED, _OUTLASTS_S = 1.3, 2.0, 2.0
_KILLED = "exit status -9:"


@dataclass(frozen=True)
class StorageLimits:
    """The most that storage delivers, and the latency that it adds. None: unlimited. `cache_bytes`: page cache of the twin."""

    bandwidth: float | None = None  # bytes per second
    requests: float | None = None  # per second
    latency: float | None = None  # seconds per read that the page cache does not hold whole
    cache: float | None = None  # bytes

    def __str__(self) -> str:
        found = []
        if self.bandwidth:
            found.append(f"{format_size(self.bandwidth)}/s")
        if self.requests:
            found.append(f"{self.requests:.4g} requests/s")
        if self.latency:
            found.append(f"latency of {format_duration(self.latency * 1e9)}")
        if self.cache:
            found.append(f"page cache of {format_size(self.cache)}")
        return ", ".join(found) or "unlimited"


@dataclass(frozen=True)
class SizedRun:
    """One run's utilisation (0 to 1), mean epoch and duration in seconds on the run's clock, and trace.

    `au` is None if it is unknown. `stopped_early`: the run reached its time limit, and its figures cover the time until then.
    """

    au: float | None
    epoch_s: float
    elapsed_s: float
    trace: Path
    stopped_early: bool = False


class LimitedTwin:
    """A twin that runs under limits. `folder`: where its runs write; `data`: the files of its data set.

    `clock`: real or virtual; None: virtual, unless the twin keeps processors busy (`twin.busy_wait`).
    """

    def __init__(self, twin: Path, data: list[Path], folder: Path, ranks: int | None, clock: str | None) -> None:
        from iotwin.workload_yaml import load

        self._twin, self._data, self._folder, self._ranks = twin, data, folder, ranks
        section = load(twin).twin
        self.clock = clock or ("real" if section.busy_wait else "virtual")
        self.is_recorded, self._is_pipeline = section.recorded is not None, section.pipeline is not None
        self._own_memory_bytes = 0
        self.runs = 0
        self.caveats: list[str] = []

    def data_bytes(self) -> int:
        """Return the size of the data set."""
        return sum(path.stat().st_size for path in self._data)

    def devices(self) -> set[str]:
        """Return the disks that hold the data set. Raises IotwinError if a file is on none."""
        return {device_below(folder) for folder in {path.parent for path in self._data}}

    def run(self, limits: StorageLimits, is_cold: bool, clock: str | None = None, limit_s: float | None = None) -> SizedRun:
        """Run the twin once under `limits`, with its data evicted first if `is_cold`, otherwise read first.

        `clock`: real or virtual; None: the one of the other runs. `limit_s`: time on this clock after which the run ends.
        """
        self.runs += 1
        note(f"run {self.runs}: {limits}, {'cold' if is_cold else 'warm'}")
        folder = self._folder / f"run-{self.runs}"
        new_folder(folder)
        for path in self._data:
            (evict if is_cold else fetch)(path)
        memory = None if limits.cache is None else self._own_memory_bytes + round(limits.cache)
        caps = Limits(_whole(limits.bandwidth), _whole(limits.requests), memory)
        devices = self.devices() if limits.bandwidth or limits.requests else set()
        # If the cache is limited, the kernel must decide which pages remain.
        kept = nullcontext() if limits.cache else kept_cached(self._data)
        with kept, LimitedCgroups(caps, devices) as cgroups:
            command, trace = self._command(limits, folder, clock or self.clock, limit_s), folder / "twin.trace"
            try:
                run_traced(command, trace, "twin", limits=cgroups, prints_events=False)
            except IotwinError as error:
                # With too little memory, the kernel kills the twin: it does not keep the target.
                if limits.cache is None or limit_s is None or _KILLED not in str(error):
                    raise
                return SizedRun(0.0, limit_s, limit_s, trace, stopped_early=True)
        if limits.cache is None:
            self._own_memory_bytes = max(self._own_memory_bytes, cgroups.most_memory_bytes)
        own = _own_figures(folder / "output" / "summary.json")
        training = own.get("training")
        if own["stopped_early"]:
            return SizedRun(training and training["au"], own["elapsed_s"], own["elapsed_s"], trace, stopped_early=True)
        if not isinstance(training, dict):
            raise UsageError(f"{self._twin} trains no step that can be timed, so its utilisation is unknown; see docs/size.md")
        if not training["epoch_s"]:
            raise IotwinError(f"{folder}/output/summary.json: the run has no epoch")
        reading_s = reading_of(Trace(trace)).span_s
        if not self.caveats and (caveat := _unmet_waits(reading_s, sum(training["epoch_s"]), self._twin)):
            self.caveats.append(caveat)
        return SizedRun(training["au"], float(np.mean(training["epoch_s"])), own["elapsed_s"], trace)

    def _command(self, limits: StorageLimits, folder: Path, clock: str, limit_s: float | None) -> list[str]:
        words = [
            f"++workload.output.folder={folder}/output",
            f"++workload.checkpoint.checkpoint_folder={folder}/output/checkpoints",
            *([f"++workload.twin.recorded.read_latency={limits.latency:.9f}"] if limits.latency else []),
            *([] if clock == "real" else [f"++workload.twin.clock={clock}"]),
            *([] if self._ranks is None else ["--ranks", str(self._ranks)]),
            *([] if limit_s is None or self._is_pipeline else ["--for", f"{limit_s:.3f}s"]),
        ]
        return own_command("emulate", self._twin, *words, "--quiet")


def _whole(limit: float | None) -> int | None:
    return None if limit is None else max(1, round(limit))


def _unmet_waits(reading_s: float, training_s: float, twin: Path) -> str | None:
    """Return a caveat if reading outlasted training: ranks may then not wait for what loaders read. None if it did not.

    Raises IotwinError if reading outlasted training by far.
    """
    if reading_s <= _WARNED * training_s + _OUTLASTS_S:
        return None
    times = f"reads took {reading_s:.1f} s, but training ended after {training_s:.1f} s"
    if reading_s > _REFUSED * training_s + _OUTLASTS_S:
        raise IotwinError(
            f"{twin}: its ranks do not wait for all data: {times}; the trace does not show these waits, so make the twin from "
            "a trace of a longer run on an idle machine"
        )
    return f"in at least one run, {times}: evaluations read that long, or ranks do not wait for all data and need more than found"


def _own_figures(summary: Path) -> dict[str, Any]:
    """Return the key `iotwin` of a run's summary."""
    document = read_foreign_json(summary)
    own = document.get("iotwin") if isinstance(document, dict) else None
    if not isinstance(own, dict) or "stopped_early" not in own or "elapsed_s" not in own:
        raise IotwinError(f"{summary} is no summary of a run that trains; see docs/size.md")
    return own
