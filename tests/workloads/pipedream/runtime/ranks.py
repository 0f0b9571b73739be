"""Runs the ranks of the training program as forked processes, which need not import torch again."""

import json
import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path

from iotwin.common import commit
from iotwin.common.ranks import claimed_ports
from iotwin.workloads.pipedream.__main__ import main
from iotwin.workloads.pipedream.runtime.weights import WeightVersions


def write_conf(folder, *replicas, modules=None):
    """Write a conf.json whose stages have so many ranks; each stage has one module unless `modules` says otherwise."""
    first, ranks = 0, {}
    for stage, count in enumerate(replicas):
        ranks[str(stage)] = list(range(first, first + count))
        first += count
    stages = modules or list(range(len(replicas)))
    path = folder / f"conf-{'-'.join(map(str, replicas))}.json"
    path.write_text(json.dumps({"module_to_stage_map": [*stages, stages[-1]], "stage_to_rank_map": ranks}))
    return path


def die_in_checkpoint(number):
    """Return a function after which the calling process kills itself in the given checkpoint, when its tensors are written."""

    def prepare():
        write, calls = commit.write_durably, []

        def dying(path, content):
            calls.append(path)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, content)

        commit.write_durably = dying

    return prepare


def die_in_update(number):
    """Return a function after which the calling process kills itself in the given update of a weight."""

    def prepare():
        update, calls = WeightVersions.update, []

        def dying(self, gradients, in_place=False):
            calls.append(gradients)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            update(self, gradients, in_place)

        WeightVersions.update = dying

    return prepare


def _rank(arguments, environment, log, prepare):
    os.environ |= environment
    sys.stdout = sys.stderr = log.open("w", buffering=1)  # pytest has replaced the original ones
    if prepare is not None:
        prepare()
    try:
        status = main(arguments)
    except BaseException:
        traceback.print_exc()
        status = 70
    os._exit(status)


def run_ranks(folder, arguments, ranks=1, prepare=None, succeed=True):
    """Run the training program. Return each rank's exit status and output. `prepare` maps ranks to what they run first."""
    import torch._dynamo  # noqa: F401 - takes two seconds, here once for all forked ranks

    context = multiprocessing.get_context("fork")
    with claimed_ports(1) as port:
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        processes = []
        for rank in range(ranks):
            words = [*map(str, arguments), "--num_ranks_in_server", "64"]
            own = environment | {"RANK": str(rank)}
            log = folder / f"rank-{rank}.log"
            processes.append(context.Process(target=_rank, args=(words, own, log, (prepare or {}).get(rank))))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    outputs = [(folder / f"rank-{rank}.log").read_text() for rank in range(ranks)]
    statuses = [process.exitcode for process in processes]
    if succeed:
        assert statuses == [0] * ranks, outputs
    return statuses, outputs


def results(outputs):
    """The JSON documents that the ranks print at the end."""
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def checkpoint_names(store):
    return sorted(path.name for path in Path(store).iterdir() if path.is_dir())
