"""Where this process stands among its fellows, and the sum that binds them."""

import json
import os
from dataclasses import dataclass

import tensorflow as tf

from common.ranks import from_environment, launched_by_torchrun


@dataclass(frozen=True)
class Ranks:
    """This process's rank, the number of ranks and what reduces over them."""

    rank: int
    world_size: int
    strategy: tf.distribute.Strategy

    def mean(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return each of `values` averaged over the ranks; call it within strategy.run."""
        if self.world_size == 1:
            return values
        context = tf.distribute.get_replica_context()
        reduced: list[tf.Tensor] = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
        return reduced

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks; every rank must call it, outside of strategy.run."""
        if self.world_size == 1:
            return list(values)
        given = tf.constant(values, tf.float64)
        total = self.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, given))
        return list(total.numpy().tolist())

    def gather(self, values: list[int]) -> list[int]:
        """Return the `values` of all ranks, as many of each, rank after rank; call it as `sum`."""
        if self.world_size == 1:
            return values
        given = tf.constant(values, tf.int64)
        gathered = self.strategy.run(lambda: tf.distribute.get_replica_context().all_gather(given, axis=0))
        return list(gathered.numpy().tolist())


def join_ranks() -> Ranks:
    """Join the ranks that RANK and WORLD_SIZE name (none: a single process), on the ports from MASTER_PORT on of MASTER_ADDR."""
    rank, world_size = launched_by_torchrun()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[from_environment("LOCAL_RANK", rank) % len(gpus)], "GPU")
    if world_size == 1:
        return Ranks(0, 1, tf.distribute.get_strategy())
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), from_environment("MASTER_PORT", 29500)
    workers = [f"{address}:{port + index}" for index in range(world_size)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    return Ranks(rank, world_size, tf.distribute.MultiWorkerMirroredStrategy())
