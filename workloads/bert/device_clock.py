"""When parts of a compiled step are done: clocks in its graph, as a graph returns to Python only when all of it has run."""

import time
from collections.abc import Sequence

import tensorflow as tf


def moment_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the wall time in seconds (float64 scalar, resolving a quarter of a microsecond) at which `tensors` are computed.

    A number of theirs is fetched to the host for it, without which a GPU would have been told to compute them, no more.
    """
    with tf.control_dependencies(tensors):
        number = tf.reshape(tensors[0], [-1])[0]
    with tf.device("CPU:0"), tf.control_dependencies([tf.identity(number)]):
        return tf.timestamp()


def wall_offset_ns() -> int:
    """Return what wall time is ahead of CLOCK_MONOTONIC: the best of three readings, as a process can be held up in one."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3)]
    before_ns, wall_ns, _ = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall_ns - before_ns
