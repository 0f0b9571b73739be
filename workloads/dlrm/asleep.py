"""The variant sleep: every batch is read as the original reads it, and a drawn sleep stands for its computation."""

import time

from datagen.layouts import DlrmLayout
from workloads.dlrm.config import Config
from workloads.dlrm.data import BatchFile, batch_order
from workloads.mllog import MlLog
from workloads.parts import Parts
from workloads.program import Result, plain_configuration
from workloads.variant import SleepModel, Slumber


def sleep_through(config: Config) -> Result:
    """Read the training batches of `config`, sleeping after each, without evaluation and checkpoints; return the result."""
    log = MlLog()
    slumber = Slumber(SleepModel.parse(config.sleep or "0"), config.seed, rank=0)
    with log.interval("init"):
        file = BatchFile(config.data / DlrmLayout.TRAIN_NAME, config.batch_size, Parts(False))
        config.output.mkdir(parents=True, exist_ok=True)
    wait_s = compute_s = 0.0
    with log.interval("run"), log.interval("training", first_step_num=0):
        begin = asked = time.perf_counter()
        for number in batch_order(file.batches, config.steps, config.shuffle, config.seed):
            file.read(number, config.most_categories)
            arrived = time.perf_counter()
            slumber.next_step()
            done = time.perf_counter()
            wait_s, compute_s, asked = wait_s + arrived - asked, compute_s + done - arrived, done
    file.close()
    return {
        "steps": config.steps, "run_seconds": asked - begin, "seconds_per_step": (wait_s + compute_s) / config.steps,
        "wait_seconds_per_step": wait_s / config.steps, "compute_seconds_per_step": compute_s / config.steps,
        "configuration": plain_configuration(config),
    }  # fmt: skip
