"""Logs every update of weights: its samples, losses, weights, optimizer state and the state of random generators.

An update is a call of `step` of any optimizer of PyTorch. Only PyTorch is patched, so the loop may belong to a framework.
"""

import os
import random
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import xxhash

from iotwin.common.files import open_append
from iotwin.common.untrusted_files import decode_foreign, read_foreign_lines
from iotwin.workloads.detrain.detectors.after_import import after_import

_MOST_LINE_BYTES = 64 << 20
_MOST_ROWS = 1 << 16


class Update(msgspec.Struct):
    """One update. Digests are 64-bit, as text. `weights`: digest by name, buffers of called modules included."""

    optimizer: int  # number of the optimizer, from 0, in the order of first updates
    indices: list[Any] | None  # indices of the samples that data loaders delivered since the previous update; None if unknown
    rows: list[str]  # digests of the samples that modules were called with, in order
    losses: list[str]  # the tensors that `backward` was called on, as float.hex()
    weights: dict[str, str]
    state: str  # digest of the optimizer's moments and learning rate
    rng: dict[str, str]  # by generator (python, numpy, torch, each GPU): digest of its state after the update
    before: str | None = None  # digest of the optimizer's weights, only before its first update
    after: str = ""  # digest of the optimizer's weights after this update


def read_updates(path: Path) -> list[Update]:
    """Return the updates of a log; [] if the file is missing. A last line that a kill cut off is left out."""
    try:
        lines = [line for line in read_foreign_lines(path, _MOST_LINE_BYTES) if line.endswith(b"\n")]
    except FileNotFoundError:
        return []
    return [decode_foreign(line, Update, path) for line in lines]


def observe(log: Path, seed: int, killed_after: int | None) -> None:
    """Log the updates of this process to `log`, and seed all global generators with `seed` once PyTorch is imported.

    `killed_after`: number of updates after which the process group kills itself; None for never.
    """
    random.seed(seed)

    def install() -> None:
        import numpy as np
        import torch

        from iotwin.workloads.common.torch_ranks import keep_groups

        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        keep_groups()
        _Observer(log, killed_after).install()

    # Not earlier: PyTorch reads environment variables that the script may set before.
    after_import("torch", install)


class _Observer:
    """Collects what happens between two updates, and writes one line per update."""

    def __init__(self, log: Path, killed_after: int | None) -> None:
        self._descriptor, self._pid = open_append(log), os.getpid()
        self._killed_after, self._updates = killed_after, 0
        self._optimizers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._before: dict[int, str] = {}
        self._names: dict[int, tuple[Any, str]] = {}  # by id of the parameter: tensors are not comparable as keys
        self._fetched: WeakKeyDictionary[Any, deque[Any]] = WeakKeyDictionary()  # indices of batches that are being loaded
        self._delivered: dict[int, Any] = {}  # indices of the latest batch of each iterator, until a `backward`
        self._depth = 0
        self._clear()

    def _clear(self) -> None:
        self._indices: list[Any] | None = []
        self._rows: list[str] = []
        self._losses: list[str] = []
        self._roots: dict[int, Any] = {}  # modules that were called by no other module

    def install(self) -> None:
        """Attach to optimizers, modules, `backward` and data loaders."""
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self._before_update)
        optimizer.register_optimizer_step_post_hook(self._after_update)
        module.register_module_forward_pre_hook(self._before_forward)
        module.register_module_forward_hook(self._after_forward, with_kwargs=True, always_call=True)
        backward = torch.autograd.backward

        def observed(tensors: Any, *arguments: Any, **options: Any) -> Any:
            self._on_backward([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
            return backward(tensors, *arguments, **options)

        torch.autograd.backward = observed
        self._watch_loaders()

    def _watch_loaders(self) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter as Batches

        next_index, next_batch, reset = Batches._next_index, Batches.__next__, Batches._reset

        def observed_index(iterator: Any) -> Any:
            index = next_index(iterator)
            self._fetched.setdefault(iterator, deque()).append(index)
            return index

        def observed_batch(iterator: Any) -> Any:
            self._delivered.pop(id(iterator), None)  # no `backward` followed the previous batch: it was not trained on
            batch = next_batch(iterator)
            if self._fetched.get(iterator):
                self._delivered[id(iterator)] = self._fetched[iterator].popleft()
            return batch

        def observed_reset(iterator: Any, *arguments: Any, **options: Any) -> Any:
            self._fetched.pop(iterator, None)
            return reset(iterator, *arguments, **options)

        Batches._next_index, Batches.__next__, Batches._reset = observed_index, observed_batch, observed_reset

    def _before_forward(self, module: Any, arguments: Any) -> None:
        self._depth += 1

    def _after_forward(self, module: Any, arguments: Any, options: Any, result: Any) -> None:
        import torch

        self._depth -= 1
        if self._depth == 0 and module.training and torch.is_grad_enabled():
            self._roots[id(module)] = module
            self._rows += rows_of([*arguments, *options.values()])

    def _on_backward(self, roots: list[Any]) -> None:
        self._losses += [float(root.detach()).hex() if root.numel() == 1 else tensor_digest(root) for root in roots]
        for index in self._delivered.values():
            known = _plain(index)
            self._indices = None if known is None or self._indices is None else [*self._indices, known]
        self._delivered.clear()

    def _before_update(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = len(self._optimizers)
            self._before[self._optimizers[optimizer]] = _joined(map(tensor_digest, _parameters(optimizer)))

    def _after_update(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if os.getpid() != self._pid:
            return
        for root in self._roots.values():
            for name, parameter in root.named_parameters():
                self._names.setdefault(id(parameter), (parameter, f"{type(root).__name__}.{name}"))
        parameters = _parameters(optimizer)
        names = [self._names.get(id(each), (each, f"parameter {index}"))[1] for index, each in enumerate(parameters)]
        weights = dict(zip(names, map(tensor_digest, parameters), strict=True))
        after = _joined(weights.values())
        for root in self._roots.values():
            weights |= {f"{type(root).__name__}.{name}": tensor_digest(each) for name, each in root.named_buffers()}
        ordinal = self._optimizers[optimizer]
        update = Update(
            ordinal, self._indices or None, self._rows, self._losses, weights, _state_digest(optimizer), generator_digests(),
            self._before.pop(ordinal, None), after,
        )  # fmt: skip
        os.write(self._descriptor, msgspec.json.encode(update) + b"\n")
        self._clear()
        self._updates += 1
        if self._updates == self._killed_after:
            os.killpg(0, signal.SIGKILL)


def tensor_digest(tensor: Any) -> str:
    """Return the digest of a tensor's type, shape and elements."""
    import torch

    if tensor.layout != torch.strided:
        return _joined([tensor_digest(tensor.detach().to_dense()), str(tensor.layout)])
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    content = plain.view(torch.uint8).numpy() if plain.numel() else b""
    return xxhash.xxh3_64_hexdigest(content, seed=xxhash.xxh3_64_intdigest(f"{tensor.dtype} {tuple(tensor.shape)}".encode()))


def rows_of(values: Sequence[Any]) -> list[str]:
    """Return one digest per sample in the arguments of a module: row by row, over all tensors with the same number of rows."""
    by_count: dict[int, list[list[str]]] = {}
    import torch
    from torch.utils import _pytree as pytree

    for tensor in (each for each in pytree.tree_leaves(list(values)) if isinstance(each, torch.Tensor)):
        count = tensor.shape[0] if tensor.dim() else 0
        digests = [tensor_digest(row) for row in tensor] if 0 < count <= _MOST_ROWS else [tensor_digest(tensor)]
        by_count.setdefault(len(digests), []).append(digests)
    return [_joined(row) for columns in by_count.values() for row in zip(*columns, strict=True)]


def generator_digests() -> dict[str, str]:
    """Return the digests of the states of the global generators of Python, NumPy and PyTorch."""
    import numpy as np
    import torch

    name, keys, *rest = np.random.get_state(legacy=True)
    digests = {
        "python": _joined([repr(random.getstate())]),
        "numpy": _joined([name, repr(rest), np.asarray(keys).tobytes().hex()]),
        "torch": tensor_digest(torch.get_rng_state()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        digests |= {f"cuda:{index}": tensor_digest(state) for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return digests


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_digest(optimizer: Any) -> str:
    """Return the digest of an optimizer's state tensors, in the order of parameters, and of its groups' options."""
    states = [optimizer.state.get(parameter, {}) for parameter in _parameters(optimizer)]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return _joined(_described(each) for each in (*states, *groups))


def _described(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return tensor_digest(value)
    if isinstance(value, dict):
        return " ".join(f"{key}={_described(value[key])}" for key in sorted(value, key=str))
    if isinstance(value, list | tuple):
        return " ".join(map(_described, value))
    return repr(value)


def _plain(index: Any) -> Any:
    """Return a batch's indices as JSON values, None if the data set has no indices."""
    if isinstance(index, list | tuple):
        values = [_plain(each) for each in index]
        return None if None in values else values
    if index is None:
        return None
    try:
        return int(index)
    except (TypeError, ValueError):
        return str(index)


def _joined(parts: Any) -> str:
    return xxhash.xxh3_64_hexdigest(" ".join(parts).encode())
