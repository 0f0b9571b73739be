"""TFRecords through tf.data: interleaved files, a shuffle buffer, a batch a step."""

import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import tensorflow as tf
from command_line import command_line

tf.config.threading.set_inter_op_parallelism_threads(2)


def _made(folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [str(folder / f"part-{i:03}.tfrecord") for i in range(12)]
    for path in (path for path in paths if not Path(path).exists()):
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(160):
                writer.write(rng.bytes(12_000))
    return paths


def main(job: Namespace) -> None:
    folder, seed = job.folder, job.seed
    (out := folder / f"out{seed}").mkdir(exist_ok=True)
    files = tf.data.Dataset.from_tensor_slices(_made(folder / "tfrecords")).shuffle(12, seed=seed)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=job.workers)
    batches = records.shuffle(200, seed=seed).batch(8 * job.scale).prefetch(2)
    for step, _ in enumerate(batches, 1):
        time.sleep(0.04 * job.scale)
        if step % 60 == 0:
            (out / f"model_{step}.ckpt").write_bytes(bytes(6_000_000))


if __name__ == "__main__":
    main(command_line())
