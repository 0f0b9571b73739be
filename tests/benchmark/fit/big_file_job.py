"""A job that reads a batch at a time from one big file, in order or at random, and computes between: what fit is tested on."""

import argparse
import json
import os
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--batch-bytes", type=int, default=1 << 16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--random", action="store_true")
parser.add_argument("--compute", type=float, default=0.01)
arguments = parser.parse_args()


def log(key: str) -> None:
    now = time.time_ns()
    print(":::MLLOG " + json.dumps({"key": key, "time_ms": now // 10**6, "time_ns": now, "metadata": {}}), flush=True)


log("init_start")
descriptor = os.open(arguments.file, os.O_RDONLY)
batches = list(range(os.fstat(descriptor).st_size // arguments.batch_bytes))
log("init_stop")
for epoch in range(arguments.epochs):
    if arguments.random:
        random.Random(epoch).shuffle(batches)
    log("epoch_start")
    for number in batches:
        os.pread(descriptor, arguments.batch_bytes, number * arguments.batch_bytes)
        time.sleep(arguments.compute)
    log("epoch_stop")
