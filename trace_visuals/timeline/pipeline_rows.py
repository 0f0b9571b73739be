"""The rows of a pipeline's ranks in a timeline: forward and backward passes with their minibatches. Gaps are idle times."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.requests import pipeline_passes
from iotwin.trace_visuals.style import PASS_COLOURS
from iotwin.trace_visuals.windows import TimeWindow

_MOST_RANKS = 16
_LETTER_IN = 0.05  # inches of a digit of 5.4 points, with its share of the margin


@dataclass(frozen=True)
class PassRows:
    """The passes of each rank that has a row, in order of rank: start_s, end_s, kind (F or B), minibatch.

    Times are seconds on the time axis. `stages` has the stage of each rank, `epochs_s` the (begin, end) of each epoch.
    """

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    passes: tuple[pd.DataFrame, ...]
    epochs_s: tuple[tuple[float, float], ...]

    def shares(self, lane: int, limits_s: tuple[float, float]) -> dict[str, float]:
        """Return the shares (0 to 1) of the epochs' time within the limits that the rank spends on forward and on backward
        passes.
        """
        own = self.passes[lane]
        spans = [(max(begin, limits_s[0]), min(end, limits_s[1])) for begin, end in self.epochs_s]
        whole = sum(max(end - begin, 0.0) for begin, end in spans)
        found = {}
        for kind in PASS_COLOURS:
            begin, end = (own.loc[own["kind"] == kind, name].to_numpy(np.float64) for name in ("start_s", "end_s"))
            inside = sum(np.clip(np.minimum(end, last) - np.maximum(begin, first), 0, None).sum() for first, last in spans)
            found[kind] = float(inside) / whole if whole > 0 else 0.0
        return found


def pass_rows(trace: Trace, window: TimeWindow) -> PassRows | None:
    """Return the rows of at most 16 ranks; None if the trace has no passes of a pipeline."""
    passes = pipeline_passes(trace)
    if passes is None:
        return None
    passes = passes.assign(
        start_s=(passes["start_ns"] - window.zero_ns) / 1e9,
        end_s=(passes["start_ns"] + passes["duration_ns"] - window.zero_ns) / 1e9,
    )
    ranks = tuple(sorted(passes["rank"].unique().tolist()))[:_MOST_RANKS]
    each = tuple(passes[passes["rank"] == rank] for rank in ranks)
    phases = trace.phases()
    epochs = phases[(phases["phase"] == "epoch") & (phases["rank"].fillna(0) == phases["rank"].fillna(0).min())]
    spans = ((epochs[["start_ns", "end_ns"]].to_numpy(np.float64) - window.zero_ns) / 1e9).tolist()
    whole = (float(passes["start_s"].min()), float(passes["end_s"].max()))
    return PassRows(ranks, tuple(int(own["stage"].iloc[0]) for own in each), each, tuple(map(tuple, spans)) or (whole,))


def draw_passes(ax: Axes, rows: PassRows, lane: int, width_in: float) -> str:
    """Draw the passes of a rank as bars, with the minibatch where it fits, and return a text with the rank's shares of time.

    `width_in`: width of the axis in inches.
    """
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    begin_s, end_s = ax.get_xlim()
    own = rows.passes[lane]
    own = own[(own["end_s"] > begin_s) & (own["start_s"] < end_s)]
    for kind, colour in PASS_COLOURS.items():
        chosen = own[own["kind"] == kind]
        spans = list(zip(chosen["start_s"], chosen["end_s"] - chosen["start_s"], strict=True))
        ax.broken_barh(spans, (0, 1), facecolor=colour, edgecolor="white", linewidth=0.2)
    room_in = (own["end_s"] - own["start_s"]) / (end_s - begin_s) * width_in
    for start, end, minibatch, room in zip(own["start_s"], own["end_s"], own["step"].astype(int), room_in, strict=True):
        if len(str(minibatch)) * _LETTER_IN < room:
            ax.text((start + end) / 2, 0.47, str(minibatch), ha="center", va="center", fontsize=5.4, clip_on=True)
    shares = rows.shares(lane, (begin_s, end_s))
    parts = [f"{kind} {share:.0%}" for kind, share in shares.items()]
    return f"stage {rows.stages[lane]}\n{', '.join(parts)}, idle {max(1 - sum(shares.values()), 0.0):.0%}"
