"""The reads of each sample, listed: where a file holds several samples and they are not its equal parts."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.passes import Pass
from iotwin.benchmark.fit.samples.samples import MOST_READS_LISTED, Samples

_FEW = 0.1  # so many of the accesses may jump in a file that is read in sequence, or come again: the tracer's or the file's doing


def are_listed(samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass]) -> bool:
    """Whether the twin lists what each sample reads: where samples are not files, and not each one equal part of a file."""
    if samples.reads is None or samples.layout == "dlrm" or sum(len(_chosen(part)) for part in (training, evaluations)) == 0:
        return False
    if len(_rows(samples, training)) + len(_rows(samples, evaluations)) > MOST_READS_LISTED:
        return False
    together = _irregular(samples) or (samples.record_bytes is not None and _shared(samples, training, evaluations))
    return together or samples.buffer_bytes is not None or drawn_at_random(training)


def drawn_at_random(training: Sequence[Pass]) -> bool:
    """Whether samples come again before all have come: as drawn with replacement, or as neighbours of several that are drawn."""
    if training[0].phase == "block":
        return True
    samples = sorted((part.samples for part in training), key=len)[len(training) // 2]
    return len(np.unique(samples)) < (1 - _FEW) * len(samples)


def listed(samples: Samples, passes: Sequence[Pass], files: Sequence[int], by_sample: bool) -> list[str]:
    """Return the reads of each sample of the passes, or of the pass of middling length where they are epochs.

    `files`: those (by index in samples.names) that the twin names, in its order. Samples are in the order read, or `by_sample`.
    """
    rows, chosen = _rows(samples, passes), _chosen(passes)
    position = np.full(len(samples.names), -1, np.int64)
    position[list(files)] = np.arange(len(files))
    texts = (
        pd.Series(position[rows["file"]].astype(str), rows.index)
        + ":"
        + rows["offset"].astype(str)
        + "+"
        + rows["size"].astype(str)
        + ("@" + rows["thread"].astype(str)).where(rows["thread"] > 0, "")
    )
    listed = texts.groupby(rows["read"]).agg(" ".join).reindex(chosen, fill_value="")
    if by_sample:
        of_read = samples.accesses.set_index("read")["sample"]
        listed = listed.iloc[np.argsort(of_read[chosen].to_numpy(), kind="stable")]
    return [str(reads) for reads in listed]


def _chosen(passes: Sequence[Pass]) -> NDArray[np.int64]:
    """The accesses (as numbered in Samples.reads) to list, in order."""
    if not passes:
        return np.zeros(0, np.int64)
    if passes[0].phase == "block":
        return np.concatenate([part.reads for part in passes])
    return sorted((part.reads for part in passes), key=len)[len(passes) // 2]


def _rows(samples: Samples, passes: Sequence[Pass]) -> pd.DataFrame:
    reads = samples.reads
    assert reads is not None  # noqa: S101
    return reads[reads["read"].isin(_chosen(passes))]


def _irregular(samples: Samples) -> bool:
    """Whether a sample is read otherwise than as one equal part of its file, or as a whole file from front to back."""
    reads, record_bytes = samples.reads, samples.record_bytes
    assert reads is not None  # noqa: S101
    if record_bytes is None:
        ended = (reads["offset"] + reads["size"]).groupby(reads["read"]).shift(fill_value=0)
        return bool((reads["offset"] != ended).groupby(reads["read"]).any().mean() > _FEW)
    own = record_bytes[reads["file"].to_numpy()]
    alike = (reads["size"].to_numpy() == own) & (reads["offset"].to_numpy() % own == 0)
    return bool(reads["read"].duplicated().any() or not alike.all())


def _shared(samples: Samples, training: Sequence[Pass], evaluations: Sequence[Pass]) -> bool:
    """Whether an evaluation reads files that the training reads."""
    trained, evaluated = (set(_rows(samples, part)["file"].tolist()) for part in (training, evaluations))
    return bool(trained & evaluated)
