"""Clocks inside a compiled step's graph: Python sees a graph's end only, and these measure when its parts end."""

import time
from collections.abc import Sequence

import tensorflow as tf


def moment_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the wall time in seconds at which `tensors` are computed: a float64 scalar with a resolution of 0.25 microseconds.

    The first number of `tensors` is copied to the host: without the copy, this would be the time at which a GPU queued the work.
    """
    with tf.control_dependencies(tensors):
        number = tf.reshape(tensors[0], [-1])[0]
    with tf.device("CPU:0"), tf.control_dependencies([tf.identity(number)]):
        return tf.timestamp()


def wall_offset_ns() -> int:
    """Return wall time minus CLOCK_MONOTONIC in nanoseconds: the quickest of three readings, in case of an interruption."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3)]
    before_ns, wall_ns, _ = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall_ns - before_ns
