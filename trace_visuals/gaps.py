"""Where a sampler stalled or ended early: what the machine did there is not known, and no curve may pretend that it is."""

import numpy as np

from iotwin.trace_visuals.call_columns import Ints

_INTERVALS = 3  # a gap is this many usual intervals without a sample
_FEWEST = 4  # fewest samples that define the usual interval


def sample_gaps(time_ns: Ints, begin_ns: int, end_ns: int) -> Ints:
    """Return the stretches of begin..end without a sample for more than three usual intervals, in ns; shape (gaps, 2).

    `time_ns` are the ends of the samples' intervals in any order, of several devices perhaps. The usual interval is the median.
    """
    times = np.unique(time_ns)
    if len(times) < _FEWEST:
        return np.empty((0, 2), dtype=np.int64)
    usual = int(np.median(np.diff(times)))
    before = np.concatenate(([begin_ns], times))
    after = np.concatenate((times, [end_ns]))
    wide = after - before > _INTERVALS * usual
    after[0] -= usual  # the first sample speaks for the interval before it
    return np.stack([before[wide], after[wide]], axis=1)
