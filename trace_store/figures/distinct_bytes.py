"""How many different bytes of files a trace's reads cover."""

import numpy as np
import pandas as pd


def distinct_bytes(reads: pd.DataFrame) -> int:
    """Return how many different bytes the `reads` (file_id, offset, result) cover; those without an offset do not count."""
    known = reads[reads["offset"].notna() & (reads["result"] > 0)].sort_values(["file_id", "offset"])
    begin, end = known["offset"].to_numpy(np.int64), (known["offset"] + known["result"]).to_numpy(np.int64)
    covered = (
        pd.Series(end).groupby(known["file_id"].to_numpy()).cummax().groupby(known["file_id"].to_numpy()).shift(fill_value=0)
    )
    return int(np.maximum(end - np.maximum(begin, covered.to_numpy(np.int64)), 0).sum())
