"""Find the times at which a sampler stalled or had ended, so that no curve is drawn across them."""

import numpy as np

from iotwin.trace_visuals.call_columns import Ints

_INTERVALS = 3  # a gap is longer than this many median intervals
_FEWEST = 4  # least number of samples from which a median is computed


def sample_gaps(time_ns: Ints, begin_ns: int, end_ns: int) -> Ints:
    """Return begin and end (ns) of each gap between `begin_ns` and `end_ns`, shape (gaps, 2).

    A gap is a time without a sample that is longer than three intervals. The interval is the median distance of samples.
    `time_ns`: times at which samples were taken, in any order, perhaps of several devices.
    """
    times = np.unique(time_ns)
    if len(times) < _FEWEST:
        return np.empty((0, 2), dtype=np.int64)
    usual = int(np.median(np.diff(times)))
    before = np.concatenate(([begin_ns], times))
    after = np.concatenate((times, [end_ns]))
    wide = after - before > _INTERVALS * usual
    after[0] -= usual  # the first sample describes the interval before it
    return np.stack([before[wide], after[wide]], axis=1)
