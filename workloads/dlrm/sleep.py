"""The variant sleep: reads each batch as the original job does, then sleeps for a random time instead of computing."""

import sys
import time

from iotwin.common.files import make_folder
from iotwin.common.mllog import MlLog
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.program import Result, plain_configuration
from iotwin.workloads.common.steps import StepMeter
from iotwin.workloads.common.variant import SleptSteps, parse_sleep
from iotwin.workloads.dlrm.config import DlrmConfig
from iotwin.workloads.dlrm.data import BatchFile, batch_order


def sleep_through(config: DlrmConfig) -> Result:
    """Read the training batches and sleep after each. Return the job's result, which has no evaluations or checkpoints."""
    log = MlLog(sys.stdout)
    parts = Parts(True)
    slept = SleptSteps(parse_sleep(config.sleep or "0"), config.seed, rank=0)
    with log.interval("init"):
        file = BatchFile(config.data / DlrmLayout.TRAIN_NAME, config.batch_size, parts)
        make_folder(config.output)
    times = StepMeter()
    steps = enumerate(batch_order(file.batches, config.steps, config.shuffle, config.seed))
    with log.interval("run"), log.interval("training", first_step_num=0):
        begin_ns = asked_ns = time.monotonic_ns()
        for step, number in steps:
            file.read(number, config.most_categories)
            arrived_ns = time.monotonic_ns()
            parts.log("load_batch_mem", asked_ns, arrived_ns - asked_ns, step_num=step)
            with parts.measure("all_compute", step_num=step):
                slept.next_step()
            done_ns = time.monotonic_ns()
            parts.log("step_end", asked_ns, done_ns - asked_ns, step_num=step)
            times.add(asked_ns, arrived_ns, done_ns)
            asked_ns = done_ns
    file.close()
    return {
        "steps": config.steps,
        "run_seconds": (asked_ns - begin_ns) / 1e9,
        **times.summary(),
        "configuration": plain_configuration(config),
    }
