"""The runs of an experiment: one for each combination of the listed values of a command."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from iotwin.workloads.dtr.experiments.config import DtrExperiment
from iotwin.workloads.models import Sizes, sizes_of

_TIMEOUT_S = 60.0  # timeout of a command that specifies none, as in the authors' programs


@dataclass(frozen=True)
class Setting:
    """One run: a model, the number of its command, and the command with one value for each key.

    `same_name`: the number of earlier runs whose table has the same name. If it is not 0, it is appended to this run's name.
    """

    model: str
    command_id: int
    params: dict[str, Any]
    same_name: int = 0

    @property
    def is_baseline(self) -> bool:
        """Return whether the run has no budget and no runtime."""
        return bool(self.params["type"] == "baseline")

    @property
    def file_name(self) -> str:
        """Return the file name of the run's table, as in the authors' programs, with a number if an earlier run has that name."""
        params = self.params
        kind = params.get("kind")
        if self.is_baseline:
            middle = f"baseline-{params['batch_size']}"
        elif kind == "ratio":
            middle = f"dtr-ratio-{params['ratio']}"
        else:
            middle = f"dtr-{'sweep' if kind == 'param_sweep' else kind}-{params['batch_size']}-{params['memory_budget']}"
        number = f"-{self.same_name + 1}" if self.same_name else ""
        return f"cmd-{self.command_id}-{middle}-{self.model}{number}.csv"

    @property
    def budget_bytes(self) -> int | None:
        """Return the budget in bytes; None if there is none, or if it is a ratio of a peak that has not been measured."""
        budget = self.params.get("memory_budget", -1)
        return int(budget) if budget > 0 else None

    @property
    def samples_candidates(self) -> bool:
        """Return whether only a random sample of the tensors is considered for eviction."""
        params = self.params
        budget, ratio = self.budget_bytes, params.get("ratio")
        least_budget, least_ratio = params.get("no_sampling_below_budget", -1), params.get("no_sampling_below_ratio", -1)
        below = budget is not None and budget <= least_budget
        return bool(params.get("use_sampling", True)) and not below and not (ratio is not None and ratio <= least_ratio)

    @property
    def timeout_s(self) -> float:
        """Return the seconds after which the measurement of one input fails."""
        return float(self.params.get("timeout", _TIMEOUT_S))

    @property
    def attempts(self) -> int:
        """Return how often the measurement of an input is tried."""
        extra = self._extra
        return int(extra.get("max_retries", 10)) if extra.get("retry_on_error", False) else 1

    @property
    def attempt_timeout_s(self) -> float:
        """Return the seconds that a step of one attempt may take, if a failed attempt is repeated."""
        return float(self._extra.get("attempt_timeout", 15))

    @property
    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = self.params.get("extra_params", {})
        return extra

    def steps(self, experiment: DtrExperiment) -> tuple[int, int]:
        """Return the number of warm-up steps and of measured steps."""
        return self.params.get("dry_run", experiment.dry_run), self.params.get("n_reps", experiment.n_reps)

    def inputs(self, experiment: DtrExperiment) -> int:
        """Return the number of inputs. A separate process measures each input."""
        return int(self.params.get("n_inputs", experiment.n_inputs))

    def model_words(self) -> tuple[str, int]:
        """Return (the model with its sizes, as an argument of `iotwin dtr train`; the number of samples in a batch).

        In the authors' programs, `batch_size` is the length of a sequence for lstm and gru. For treelstm, it is the depth of a
        tree, unless `dep` is given. In these cases, `input_size` is the number of samples.
        """
        extra = self._extra
        sizes: Sizes = {key: extra[key] for key in sizes_of(self.model, "paper") if key in extra}
        samples = self.params["batch_size"]
        if self.model in ("lstm", "gru"):
            sizes["length"], samples = samples, extra.get("input_size", 50)
        elif self.model == "treelstm" and "dep" not in extra:
            sizes["dep"], samples = samples, extra.get("input_size", 100)
        words = ",".join(f"{key}={value:g}" for key, value in sizes.items())
        return f"{self.model}:{words}" if words else self.model, int(samples)


def settings_of(experiment: DtrExperiment) -> Iterator[Setting]:
    """Yield all runs of an experiment: by model, by command, and by the Cartesian product of the command's lists."""
    names: Counter[str] = Counter()
    for model in experiment.models:
        for command_id, command in enumerate(experiment.commands[model]):
            for params in unfolded(command):
                setting = Setting(model, command_id, params)
                if params.get("kind") not in experiment.ignored_kinds:
                    names[setting.file_name] += 1
                    yield replace(setting, same_name=names[setting.file_name] - 1)


def unfolded(command: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield `command` with each combination of the values of those keys that have a list."""
    names = [key for key, value in command.items() if isinstance(value, list)]
    for values in itertools.product(*(command[name] for name in names)):
        yield {**command, **dict(zip(names, values, strict=True))}


def with_peak(setting: Setting, peak_bytes: int) -> Setting:
    """Return `setting` with a budget in bytes: its ratio times `peak_bytes`, the model's peak memory without a budget."""
    return replace(setting, params={**setting.params, "memory_budget": peak_bytes * float(setting.params["ratio"])})
