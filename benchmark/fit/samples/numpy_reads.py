"""Whether a job reads .npy files by numpy.load, as its twin does, and what that reads twice."""

from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.samples.samples import Samples
from iotwin.trace_store import schema

# All that Python's first buffer brought is read again, and so is the header, by the C library.
_BUFFER_BYTES, _HEADER_BYTES = 4096, 128


def read_twice(size_bytes: int) -> int:
    """Return how many bytes of a .npy file of so many numpy.load reads twice."""
    return min(size_bytes, _BUFFER_BYTES) + _HEADER_BYTES


def are_read_by_numpy(job: Job, samples: Samples) -> bool:
    """Whether the bytes read of .npy files are rather those that numpy.load reads, some of them twice, than the files' own."""
    if samples.layout not in ("npy", "unet3d"):
        return False
    files = job.files[(job.files["kind"] == "dataset") & job.files["path"].str.endswith(".npy") & (job.files["size_bytes"] > 0)]
    ids, sizes = files["file_id"].tolist(), files["size_bytes"].astype(int)
    opens = job.calls_on(ids, schema.OPEN_OPS)["file_id"].value_counts().reindex(ids, fill_value=0).to_numpy()
    read_bytes = int(job.calls_on(ids, schema.READ_OPS)["result"].clip(lower=0).sum())
    once, again = int((opens * sizes).sum()), int((opens * sizes.map(read_twice)).sum())
    return abs(read_bytes - once - again) < abs(read_bytes - once)
