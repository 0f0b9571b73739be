"""This process's rank among the ranks of a TensorFlow job, and collective operations."""

import json
import os
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.eager import context as eager  # TensorFlow offers no barrier of ranks elsewhere

from iotwin.common.ranks import HOSTS_OF_RANKS, from_environment, launched_by_torchrun

_LONGEST_WAIT_MS = 24 * 3600 * 1000  # rank 0 may evaluate while the others wait


@dataclass(frozen=True)
class TensorflowRanks:
    """This process's rank, the number of ranks, and TensorFlow's strategy for collective operations of all ranks."""

    rank: int
    world_size: int
    strategy: tf.distribute.Strategy

    def mean(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return each of `values` averaged over the ranks. Call it within strategy.run."""
        if self.world_size == 1:
            return values
        context = tf.distribute.get_replica_context()
        reduced: list[tf.Tensor] = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
        return reduced

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks. Every rank must call this method, outside of strategy.run."""
        if self.world_size == 1:
            return list(values)
        given = tf.constant(values, tf.float64)
        total = self.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, given))
        return list(total.numpy().tolist())

    def gather(self, values: list[int]) -> list[int]:
        """Return the `values` of all ranks, concatenated in rank order.

        Every rank must call this method with the same number of values, outside of strategy.run.
        """
        if self.world_size == 1:
            return values
        given = tf.constant(values, tf.int64)
        gathered = self.strategy.run(lambda: tf.distribute.get_replica_context().all_gather(given, axis=0))
        return list(gathered.numpy().tolist())

    def leave(self) -> None:
        """Return once every rank has received what it waited for. Every rank must call this method, last of all.

        A rank that ends sooner can take with it what another rank has yet to fetch from it: the other's operation then fails.
        """
        if self.world_size == 1:
            return
        try:
            eager.context().wait_at_barrier("leave", _LONGEST_WAIT_MS)
        except tf.errors.OpError:
            if self.rank == 0:  # other ranks may lose the answer: rank 0 keeps the barrier, and may have ended
                raise


def join_ranks() -> TensorflowRanks:
    """Connect to the other ranks. RANK and WORLD_SIZE come from the environment; without them, this is the only process.

    Rank r listens on port MASTER_PORT + r of MASTER_ADDR or, in a job on several hosts, of its host.
    """
    rank, world_size = launched_by_torchrun()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[from_environment("LOCAL_RANK", rank) % len(gpus)], "GPU")
    if world_size == 1:
        return TensorflowRanks(0, 1, tf.distribute.get_strategy())
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), from_environment("MASTER_PORT", 29500)
    hosts = os.environ.get(HOSTS_OF_RANKS, ",".join([address] * world_size)).split(",")
    workers = [f"{host}:{port + index}" for index, host in enumerate(hosts)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    return TensorflowRanks(rank, world_size, tf.distribute.MultiWorkerMirroredStrategy())
