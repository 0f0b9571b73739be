"""The training job of the documentation's examples: loader processes, steps, checkpoints; a pause stands for the network.

It hands work to its loaders and logs its phases as the real jobs do, needs only numpy, and ends within seconds.
"""

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

LOADERS, STEP_S = 2, 0.01


def log(key: str, event_type: str, **metadata: object) -> None:
    line = {"key": key, "event_type": event_type, "time_ns": time.time_ns(), "metadata": metadata}
    print(f":::MLLOG {json.dumps(line)}", flush=True)


def load(requests, results) -> None:
    for batch in iter(requests.get, None):
        results.put(float(np.mean([np.load(path).mean() for path in batch])))


def train_epoch(batches: list[list[Path]]) -> None:
    results = multiprocessing.SimpleQueue()
    requests = [multiprocessing.SimpleQueue() for _ in range(LOADERS)]
    loaders = [multiprocessing.Process(target=load, args=(queue, results)) for queue in requests]
    for loader in loaders:
        loader.start()
    for number, batch in enumerate(batches[: 2 * LOADERS]):
        requests[number % LOADERS].put(batch)
    for number in range(len(batches)):
        wait([results._reader])
        results.get()
        if number + 2 * LOADERS < len(batches):
            requests[number % LOADERS].put(batches[number + 2 * LOADERS])
        time.sleep(STEP_S)
    for queue, loader in zip(requests, loaders, strict=True):
        queue.put(None)
        loader.join()


def save(path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(np.zeros(1 << 18).tobytes())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, default=Path("checkpoints"))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    args.output.mkdir(exist_ok=True)
    log("init", "INTERVAL_START")
    files = sorted(args.data.glob("case_*_x.npy"))
    random = np.random.default_rng(1)
    log("init", "INTERVAL_END")
    for epoch in range(1, args.epochs + 1):
        order = random.permutation(len(files)).tolist()
        log("epoch", "INTERVAL_START", epoch_num=epoch)
        train_epoch([[files[i] for i in order[begin : begin + 2]] for begin in range(0, len(order), 2)])
        log("epoch", "INTERVAL_END", epoch_num=epoch)
        log("checkpoint", "INTERVAL_START", epoch_num=epoch)
        save(args.output / "model.pt")
        log("checkpoint", "INTERVAL_END", epoch_num=epoch)


if __name__ == "__main__":
    main()
