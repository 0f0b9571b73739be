"""Trains a model of `iotwin.workloads.models` within a memory budget, and compares it with training without one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from iotwin.common.progress import note
from iotwin.workloads.dtr.live.memory import BudgetError
from iotwin.workloads.dtr.live.session import Account, Rematerialize
from iotwin.workloads.models import build, default_batch
from iotwin.workloads.models.built import Built

_WARM_UP = 2  # first steps, which are not part of the slowdown
_SEARCHED_S = 20  # seconds of search for a sufficient budget, after a budget was too small


@dataclass(frozen=True)
class BudgetedTraining:
    """What to train. `batch`: samples in a step; None: the model's default."""

    model: str
    preset: str = "tiny"
    batch: int | None = None
    steps: int = 5
    seed: int = 0
    device: str = "cpu"


@dataclass
class TrainedModel:
    """What a training run measured: seconds and loss of each step, and bytes of one batch's inputs and of the model's parameters
    and buffers.

    It also has the SHA-256 of the gradients after the last step, and of the weights.
    """

    step_s: list[float]
    losses: list[float]
    input_bytes: int = 0
    model_bytes: int = 0
    gradients_sha256: str = ""
    weights_sha256: str = ""

    @property
    def usual_step_s(self) -> float:
        """The median time of a step, without the first ones."""
        return median(self.step_s[_WARM_UP:] or self.step_s)


def train(training: BudgetedTraining, budget: int | None = None, *, ratio: float | None = None, compare_plain: bool = False,
          search: bool = True, **choice: Any) -> dict[str, Any]:  # fmt: skip
    """Train under a budget in bytes, or under `ratio` of the peak memory without a budget; return a document.

    `search`: if the budget is too small, search for one that is enough. `choice`: options of `Rematerialize`, like `heuristic`.
    With `compare_plain`, the document has the ratio of step times (`slowdown`, from medians), and whether gradients, losses and
    weights are equal bit for bit.
    Raises BudgetError if the budget cannot be kept, UsageError if the model or an option is unknown.
    """
    if ratio is not None:
        budget = round(ratio * _without_limit(training).peak_bytes)
    try:
        with Rematerialize(budget, device=training.device, **choice) as session:
            trained = _train(training)
    except BudgetError as error:
        raise _with_enough(error, training, _SEARCHED_S if search else 0, choice) from None
    document = _document(training, trained, session.account.document())
    if compare_plain:
        plain = _train(training)
        document["slowdown"] = trained.usual_step_s / plain.usual_step_s
        document["gradients_equal"] = plain.gradients_sha256 == trained.gradients_sha256 and plain.losses == trained.losses
        document["weights_equal"] = plain.weights_sha256 == trained.weights_sha256
    return document


def train_plain(training: BudgetedTraining) -> dict[str, Any]:
    """Train without a budget, by PyTorch alone. Return the document of `train`, in which the costs of a budget are None.

    The peak memory comes from two further steps, in which tensors are counted.
    """
    unknown = dict.fromkeys(field.name for field in fields(Account))
    return _document(training, _train(training), unknown | {"peak_bytes": _without_limit(training).peak_bytes})


def _document(training: BudgetedTraining, trained: TrainedModel, account: dict[str, Any]) -> dict[str, Any]:
    base_s, remat_s = account["base_compute_s"], account["remat_compute_s"]
    return {
        "model": training.model, "batch": _batch(training), "device": training.device, "steps": training.steps, **account,
        "overhead": (base_s + remat_s) / base_s if base_s else None,
        "input_bytes": trained.input_bytes, "model_bytes": trained.model_bytes, "step_s": trained.step_s,
        "losses": trained.losses, "weights_sha256": trained.weights_sha256, "slowdown": None, "gradients_equal": None,
        "weights_equal": None,
    }  # fmt: skip


def _with_enough(error: BudgetError, training: BudgetedTraining, limit_s: float, choice: dict[str, Any]) -> BudgetError:
    """Return the error with the bytes below which no budget is possible, and with a budget that was enough for two steps.

    The latter is found by trying budgets until `limit_s` seconds have passed. If `limit_s` is 0, it is None.
    """
    if limit_s:
        note(f"the budget is refused; looking for one that is enough, for at most {limit_s:.0f} s")
    # If training failed at an early operation, the operation that needs most memory has not run yet.
    least, enough = Rematerialize.find_budget(
        lambda: _train(training, steps=2), limit_s=limit_s, at_least=error.least_bytes, device=training.device, **choice
    )
    return BudgetError(error.reason, least, enough if limit_s else None)


def _without_limit(training: BudgetedTraining) -> Account:
    """Return the account of two steps without a budget. During the whole second step, the optimizer's state is in memory."""
    with Rematerialize(None, device=training.device) as unlimited:
        _train(training, steps=2)
    return unlimited.account


def _batch(training: BudgetedTraining) -> int:
    return training.batch or default_batch(training.model)


def _train(training: BudgetedTraining, steps: int | None = None) -> TrainedModel:
    torch.manual_seed(training.seed)
    built: Built
    with torch.device(training.device):
        built = build(training.model, training.preset)
    optimizer = sgd(built.module)
    trained = TrainedModel([], [], model_bytes=_bytes([*built.module.parameters(), *built.module.buffers()]))
    for _ in range(training.steps if steps is None else steps):
        with torch.device(training.device):
            inputs = built.make_inputs(_batch(training))
        trained.input_bytes = _bytes(inputs)
        begin = perf_counter()
        optimizer.zero_grad()
        loss = built.loss(built.module, *inputs)
        loss.backward()
        optimizer.step()
        trained.losses.append(loss.item())  # waits for the device
        trained.step_s.append(perf_counter() - begin)
    gradients = [parameter.grad for parameter in built.module.parameters()]
    trained.gradients_sha256 = _sha256([gradient for gradient in gradients if gradient is not None])
    trained.weights_sha256 = _sha256(list(built.module.state_dict().values()))
    return trained


def sgd(module: nn.Module) -> torch.optim.SGD:
    """Return the optimizer that trains a model."""
    return torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _sha256(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    with torch.no_grad():
        for tensor in tensors:
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
