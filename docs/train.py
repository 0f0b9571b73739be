"""The training job of the tutorials: loader processes read and decode samples, the main process computes and writes checkpoints.

Pauses stand for decoding and computing. The job sends requests to its loaders and logs its phases as real jobs do. It needs only
numpy, and ends within seconds.
"""

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

STEP_S = 0.01


def log(key: str, event_type: str, **metadata: object) -> None:
    """Print the begin or end of a phase as an MLLOG line, which iotwin finds in the output."""
    line = {"key": key, "event_type": event_type, "time_ns": time.time_ns(), "metadata": metadata}
    print(f":::MLLOG {json.dumps(line)}", flush=True)


def load(requests, results, decode_s: float) -> None:
    """Run a loader: for each requested batch (a list of paths), read and decode its samples and deliver a result."""
    for batch in iter(requests.get, None):
        values = []
        for path in batch:
            values.append(np.load(path).mean())
            time.sleep(decode_s)
        results.put(float(np.mean(values)))


def train_epoch(batches: list[list[Path]], num_workers: int, decode_s: float) -> None:
    """Train one epoch, with two batches in flight for each of `num_workers` loaders."""
    results = multiprocessing.SimpleQueue()
    requests = [multiprocessing.SimpleQueue() for _ in range(num_workers)]
    loaders = [multiprocessing.Process(target=load, args=(queue, results, decode_s)) for queue in requests]
    for loader in loaders:
        loader.start()
    for index, batch in enumerate(batches[: 2 * num_workers]):
        requests[index % num_workers].put(batch)
    for index in range(len(batches)):
        wait([results._reader])
        results.get()
        if index + 2 * num_workers < len(batches):
            requests[index % num_workers].put(batches[index + 2 * num_workers])
        time.sleep(STEP_S)
    for queue, loader in zip(requests, loaders, strict=True):
        queue.put(None)
        loader.join()


def save(path: Path) -> None:
    """Write a checkpoint of 2 MiB durably."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # ranks write the same checkpoint
    with partial.open("wb") as file:
        file.write(np.zeros(1 << 18).tobytes())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def main() -> None:
    """Train, and write a checkpoint after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, default=Path("checkpoints"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-workers", type=int, default=2, help="loader processes")
    parser.add_argument("--decode-ms", type=float, default=0, help="milliseconds that a loader decodes a sample")
    args = parser.parse_args()
    args.output.mkdir(exist_ok=True)
    log("init", "INTERVAL_START")
    files = sorted(args.data.glob("case_*_x.npy"))
    random = np.random.default_rng(1)
    log("init", "INTERVAL_END")
    for epoch in range(1, args.epochs + 1):
        order = random.permutation(len(files)).tolist()
        batches = [[files[i] for i in order[begin : begin + 2]] for begin in range(0, len(order), 2)]
        log("epoch", "INTERVAL_START", epoch_num=epoch)
        train_epoch(batches, args.num_workers, args.decode_ms / 1000)
        log("epoch", "INTERVAL_END", epoch_num=epoch)
        log("checkpoint", "INTERVAL_START", epoch_num=epoch)
        save(args.output / "model.pt")
        log("checkpoint", "INTERVAL_END", epoch_num=epoch)


if __name__ == "__main__":
    main()
