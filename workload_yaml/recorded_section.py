"""The section `twin.recorded`: the recording that the emulator replays, and how."""

from typing import Annotated, Literal

import msgspec

from iotwin.workload_yaml.dataset import Positive, Section

Factor = Annotated[float, msgspec.Meta(ge=0, le=1000)]


class TwinRecorded(Section):
    """The recording to replay, and how to replay it. A replay ignores all other keys except twin.ranks and the folders."""

    file: str  # written by `iotwin fit` next to the YAML, and read from there
    loop: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1  # number of replays, one after another
    cut_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # replay only the job's first seconds; None: all
    think_scale: Factor = 1.0  # for the job's time between calls
    decode_scale: Factor = 1.0  # for the time between the calls that read a sample
    request_bytes: Positive | None = None  # sequential reads are joined into requests of up to so many bytes; None: as recorded
    read_latency: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0  # seconds added to a read that the page cache lacks
    keep_open: bool = False  # a process opens each file of the data set once, and closes it after its last read
    read_order: Literal["recorded", "sequential"] = "recorded"  # sequential: training reads its samples without shuffling them
    balanced_ranks: bool = False  # ranks have equally many samples and loaders, and loaders as quick as the median rank's
    read_once: bool = False  # a thread reads each byte of the data set once, and then has it in memory
