"""Measures one run of an experiment: a process of ``iotwin dtr train`` for each input. A failed process may be repeated."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import dying_with_us, end_programs
from iotwin.common.untrusted_files import decode_foreign
from iotwin.workloads.dtr.experiments.config import DtrExperiment
from iotwin.workloads.dtr.experiments.settings import Setting

_GRACE_S = 5.0
_NO_BUDGET = 1 << 60  # bytes that no device has
# Columns of a table of measurements, before the keys of the command. Times are in ms, memory is in MB, the budget in bytes.
PARTS = {
    "base_compute_time": "base_compute_s",
    "remat_compute_time": "remat_compute_s",
    "search_time": "search_s",
    "cost_time": "cost_s",
}
MEASURED = ("time", "gpu_time", "input_mem", "model_mem", "total_mem", "sync_time", *PARTS, "memory_budget")
Row = dict[str, Any]


class ActionResult(NamedTuple):
    """How a process of ``iotwin dtr`` ended: its exit status (None if it exceeded its timeout), stdout and stderr."""

    status: int | None
    output: str
    errors: str


Caller = Callable[[list[str], float, dict[str, str]], ActionResult]


def call_action(words: list[str], timeout_s: float, environment: dict[str, str]) -> ActionResult:
    """Run ``iotwin dtr`` with the arguments `words` (the action first) for at most `timeout_s`, in a separate session."""
    program = subprocess.Popen(
        [sys.executable, "-m", "iotwin", "dtr", *words, "--json"], env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=dying_with_us(signal.SIGKILL),
    )  # fmt: skip
    try:
        output, errors = program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return ActionResult(None, "", "")
    finally:
        end_programs([program], _GRACE_S, whole_session=True)
        for pipe in (program.stdout, program.stderr):
            if pipe is not None:
                pipe.close()
    return ActionResult(program.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


@dataclass(frozen=True)
class Machine:
    """What the runs of an experiment share: the preset of the models, the device, and how actions are called."""

    preset: str = "paper"
    device: str = "cpu"
    call: Caller = call_action

    def words(self, setting: Setting, experiment: DtrExperiment, index: int) -> list[str]:
        """Return the arguments of ``iotwin dtr`` for the input `index`, without a budget if `setting` has none."""
        model, samples = setting.model_words()
        words = [
            "train", model, "--batch", str(samples), "--steps", str(sum(setting.steps(experiment))), "--preset", self.preset,
            "--device", self.device, "--seed", str(experiment.seed + index),
        ]  # fmt: skip
        if setting.is_baseline:
            return [*words, "--plain"]
        words += ["--budget", str(setting.budget_bytes or _NO_BUDGET), "--no-search"]
        if "heuristic" in setting.params:
            words += ["--heuristic", setting.params["heuristic"]]
        words += ["--sampling"] if setting.samples_candidates else []
        return [*words, "--ignore-small"] if setting.params.get("ignore_small_tensors", True) else words


@dataclass
class Measurement:
    """The rows of a run's table, the number of repeated attempts, and the first error with its input (None without an error)."""

    rows: list[Row]
    retries: int = 0
    error: str | None = None
    failed_input: int = 0


def measure(setting: Setting, experiment: DtrExperiment, machine: Machine) -> Measurement:
    """Measure all inputs of a run. Stops at the first input that fails."""
    measured = Measurement([])
    for index in range(setting.inputs(experiment)):
        document, retries, error = _attempts(setting, experiment, machine, index)
        measured.retries += retries
        if document is None:
            measured.error, measured.failed_input = error, index
            return measured
        measured.rows += _rows(setting, experiment, index, retries, document)
    return measured


def peak_bytes(setting: Setting, experiment: DtrExperiment, machine: Machine) -> int:
    """Return the peak memory of the model of `setting` without a budget. Raises IotwinError if its training fails."""
    kept: dict[str, Any] = {
        key: setting.params[key] for key in ("batch_size", "timeout", "extra_params") if key in setting.params
    }
    plain = Setting(setting.model, setting.command_id, {**kept, "type": "baseline", "dry_run": 0, "n_reps": 2})
    document, _, error = _attempts(plain, experiment, machine, 0)
    if document is None:
        raise IotwinError(f"{setting.model}: the peak memory without a budget cannot be measured: {error}")
    return int(document["peak_bytes"])


def _attempts(
    setting: Setting, experiment: DtrExperiment, machine: Machine, index: int
) -> tuple[dict[str, Any] | None, int, str | None]:
    """Return the document of a training, the number of failed attempts before it, and the last error if none succeeded."""
    words = machine.words(setting, experiment, index)
    environment = dict(os.environ) | ({"CUDA_LAUNCH_BLOCKING": "1"} if experiment.sync_gpu else {})
    deadline = time.monotonic() + setting.timeout_s
    each_s = setting.timeout_s
    if setting.attempts > 1:
        each_s = min(each_s, setting.attempt_timeout_s * sum(setting.steps(experiment)))
    error = None
    for attempt in range(setting.attempts):
        left_s = min(each_s, deadline - time.monotonic())
        if left_s <= 0:
            return None, attempt, f"no attempt succeeded within {setting.timeout_s:g} s; the last: {error}"
        result = machine.call(words, left_s, environment)
        if result.status == 0:
            return _document(result.output, words), attempt, None
        error = reason_of_failure(result, left_s)
        if _is_final(result):
            return None, attempt, error
    return None, setting.attempts - 1, error


def reason_of_failure(result: ActionResult, limit_s: float) -> str:
    """Return why an action failed: the last line that it printed on stderr, if there is one. `limit_s`: its timeout."""
    if result.status is None:
        return f"took more than {limit_s:g} s"
    if result.status < 0:
        return f"killed by signal {-result.status}"
    lines = result.errors.strip().splitlines()
    return lines[-1] if lines else f"ended with exit status {result.status}"


def _is_final(result: ActionResult) -> bool:
    """Return whether a repeated attempt would fail in the same way, since training under a budget is deterministic."""
    return result.status in (1, 2) and result.errors.strip().startswith("iotwin dtr train:")


def _document(output: str, words: list[str]) -> dict[str, Any]:
    document: Any = decode_foreign(output.encode(), object, "the document of iotwin dtr train")
    if not isinstance(document, dict) or not isinstance(document.get("step_s"), list) or "peak_bytes" not in document:
        raise IotwinError(f"iotwin dtr {' '.join(words)} printed no document with step_s and peak_bytes")
    return document


def _rows(setting: Setting, experiment: DtrExperiment, index: int, retries: int, document: dict[str, Any]) -> list[Row]:
    """Return a row for each measured step: times in ms, memory in MB. The parts of a step are means over all steps."""
    warm_ups, _ = setting.steps(experiment)
    step_s = document["step_s"]
    parts: Row = dict.fromkeys(PARTS)
    if not setting.is_baseline:
        parts = {column: _scaled(document.get(key), 1e3 / max(1, len(step_s))) for column, key in PARTS.items()}
    memory: Row = {
        "input_mem": _scaled(document.get("input_bytes"), 1e-6),
        "model_mem": _scaled(document.get("model_bytes"), 1e-6),
        "total_mem": document["peak_bytes"] * 1e-6,
    }
    others = {key: value for key, value in setting.params.items() if key not in MEASURED}
    # A step ends when the device has finished it, so that no time passes in a later synchronisation.
    return [
        {
            "input": index, "rep": rep, "num_retries": retries, "time": seconds * 1e3, "gpu_time": seconds * 1e3, **memory,
            "sync_time": 0.0, **parts, "memory_budget": setting.params.get("memory_budget", -1), **others,
        }
        for rep, seconds in enumerate(step_s[warm_ups:])
    ]  # fmt: skip


def _scaled(value: Any, factor: float) -> float | None:
    return value * factor if isinstance(value, (int, float)) else None
