"""Finds the TFRecord files of a data set, without TensorFlow."""

from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted


def find_shards(directory: Path, world_size: int) -> list[Path]:
    """Return the training shards in `directory`. Raises IotwinError if one is missing or if there are more ranks than shards."""
    shards = sorted(directory.glob("part-?????-of-?????"))
    if not shards:
        raise IotwinError(
            f"{directory} holds no part-NNNNN-of-NNNNN; make a data set with: iotwin generate bert -o {directory} --size 1GiB"
        )
    wanted = int(shards[0].name.rpartition("-")[2])
    if len(shards) != wanted:
        raise IotwinError(f"{directory} holds {len(shards)} of {counted(wanted, 'shard')}; generate the data set again")
    if len(shards) < world_size:
        raise IotwinError(f"{directory} has {counted(len(shards), 'shard')}, too few for {world_size} ranks; generate more data")
    return shards
