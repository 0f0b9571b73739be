"""TFRecords through tf.data: interleaved files, a shuffle buffer, a batch a step."""

import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from command_line import JobOptions
from job_parts import launch

tf.config.threading.set_inter_op_parallelism_threads(2)


def _made(job: JobOptions) -> list[str]:
    (folder := job.data("tfrecords")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [str(folder / f"part-{i:03}.tfrecord") for i in range(job.samples(12))]
    for path in (path for path in paths if not Path(path).exists()):
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(160):
                writer.write(rng.bytes(12_000))
    return paths


def main(job: JobOptions, paths: list[str]) -> None:
    files = tf.data.Dataset.from_tensor_slices(paths).shard(job.ranks, job.rank).shuffle(len(paths), seed=job.seed)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=job.workers)
    batches = records.shuffle(200, seed=job.seed).repeat(job.epochs(1)).batch(job.batch(8)).prefetch(2)
    for step, _ in enumerate(batches, 1):
        time.sleep(job.step_s(0.04))
        job.meet()
        if step % 60 == 0 and job.rank == 0:
            (job.out / f"model_{step}.ckpt").write_bytes(bytes(6_000_000))


if __name__ == "__main__":
    launch(_made, main)
