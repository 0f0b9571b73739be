"""A job that takes batches of TFRecords from tf.data as the BERT job does (files in turn, records shuffled): to test fit on."""

import argparse
import json
import random
import time
from pathlib import Path

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--cycle", type=int, default=4)
parser.add_argument("--shuffle", type=int, default=300)
arguments = parser.parse_args()


def log(key: str, value: int | None = None, **metadata: int) -> None:
    now = time.time_ns()
    event = {"key": key, "value": value, "time_ms": now // 10**6, "time_ns": now, "metadata": metadata}
    print(":::MLLOG " + json.dumps(event), flush=True)


log("init_start")
names = [str(path) for path in sorted(arguments.data.rglob("*.tfrecord"))]
files = tf.data.Dataset.from_tensor_slices(names).repeat().shuffle(len(names), seed=1)
records = files.interleave(
    tf.data.TFRecordDataset, cycle_length=arguments.cycle, num_parallel_calls=arguments.cycle, deterministic=False
)
batches = iter(records.shuffle(arguments.shuffle, seed=1).batch(arguments.batch).prefetch(2))
log("global_batch_size", arguments.batch)
log("init_stop")
pause = random.Random(1)
log("block_start", step_count=arguments.steps)
for _ in range(arguments.steps):
    next(batches)
    time.sleep(pause.uniform(0, 0.02))  # steps of equal length may show in the pauses of the threads
log("block_stop")
