"""The values of a recorded job that can be edited: its batch size, loaders, prefetch depth, epochs, samples and computation."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.workload_yaml.recording import RecordedBatches

MOST_PREFETCHED = 8  # most batches that a loader is assumed to prefetch; PyTorch's default is 2
_NEARLY_ALL = 0.9  # if this share of a pass's batches is in flight, all are assumed to have been requested
PARTS = 16  # batch size in the YAML if samples are unknown: large enough to be halved several times


class RecordedStructure(NamedTuple):
    """Values of a recorded job's training. `prefetch`: batches in flight over all loaders of a rank; None: two per loader."""

    batch_size: int
    loaders: int
    prefetch: int | None
    epochs: int
    samples: int  # samples of an epoch, over all ranks
    computation_s: float  # median computation time of a step
    ranks: int
    samples_known: bool
    requested_at_once: bool  # True if all batches of an epoch were requested at its start


def passes_of_first_rank(batches: RecordedBatches) -> list[int]:
    """Return the indices of the training passes of the first rank."""
    training = [index for index, each in enumerate(batches.passes) if each.training]
    return [index for index in training if batches.passes[index].process == batches.passes[training[0]].process]


def structure_of(batches: RecordedBatches) -> RecordedStructure:
    """Return the structure of the recorded training. Epochs and batches are those of the first rank."""
    bounds = pass_bounds(batches)
    own = passes_of_first_rank(batches)
    rows = np.concatenate([np.arange(bounds[index], bounds[index + 1]) for index in own])
    sizes = np.array(batches.samples, np.int64)[rows]
    known = bool((sizes > 0).any())
    size = int(np.bincount(sizes[sizes > 0]).argmax()) if known else batches.usual_samples
    loaders = np.array(batches.loader, np.int64)
    workers = max(len(np.unique(loaders[bounds[index] : bounds[index + 1]])) * bool(batches.passes[index].depth) for index in own)
    depth = max(batches.passes[index].depth for index in own)  # short epochs and busy machines have fewer batches in flight
    computation = np.subtract(batches.computed_ns, batches.taken_ns)[rows]
    at_once = any(is_requested_at_once(batches.passes[index].depth, batches.passes[index].batches, workers) for index in own)
    ranks = len({each.process for each in batches.passes if each.training})
    every = np.where(sizes > 0, sizes, size) if known else np.full(len(rows), size)
    lengths = np.cumsum([batches.passes[index].batches for index in own])[:-1]
    samples = max(int(part.sum()) for part in np.split(every, lengths))  # a resumed job's first epoch is shorter
    return RecordedStructure(
        batch_size=size, loaders=workers, prefetch=None if depth == 2 * workers else depth, epochs=len(own),
        samples=ranks * samples, computation_s=float(np.median(computation)) / 1e9,
        ranks=ranks, samples_known=known, requested_at_once=at_once,
    )  # fmt: skip


def pass_bounds(batches: RecordedBatches) -> NDArray[np.int64]:
    """Return the index of each pass's first batch, followed by the number of all batches: shape (passes + 1,)."""
    bounds: NDArray[np.int64] = np.append(0, np.cumsum([each.batches for each in batches.passes])).astype(np.int64)
    return bounds


def is_requested_at_once(depth: int, batches: int, loaders: int) -> bool:
    """Return True if a pass requested nearly all its batches at its start, far more than `loaders` loaders prefetch.

    `depth`: most batches that were requested and not yet taken. `batches`: number of batches of the pass. Even then `depth` may
    be below `batches`, because loaders deliver some batches before the last one is requested.
    """
    return depth >= min(batches - loaders, _NEARLY_ALL * batches) and depth > MOST_PREFETCHED * loaders
