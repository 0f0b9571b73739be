"""The section `twin.recorded`: the recording that the emulator replays, and how."""

from typing import Annotated

import msgspec

from iotwin.workload_yaml.dataset import Section

Factor = Annotated[float, msgspec.Meta(ge=0, le=1000)]


class TwinRecorded(Section):
    """The recording to replay, and how to replay it. Edits follow further keys, such as reader.batch_size."""

    file: str  # written by `iotwin fit` next to the YAML, and read from there
    think_scale: Factor = 1.0  # factor for the job's time between calls
    decode_scale: Factor = 1.0  # factor for the time between the calls that read one sample
    read_latency: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0  # seconds added to a read that the page cache cannot serve
    balanced_ranks: bool = False  # each rank has the median rank's loaders (as many, as quick) and as many samples
