"""Jobs killed at a step, in processes of their own: what they consumed, and how what resumes them ends."""

import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import NamedTuple
from unittest import mock

from iotwin.common.ranks import claimed_ports
from iotwin.workloads.state import keeper


def die_after(step):
    """Let this process be killed once it has consumed the samples of `step`."""
    consumed = keeper.Keeper.consumed

    def then_die(self, *arguments):
        consumed(self, *arguments)
        if self.steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    keeper.Keeper.consumed = then_die


class Ended(NamedTuple):
    """How a rank ended: its exit status (-signal if one ended it), and what it printed."""

    status: int
    out: str
    err: str


def tensorflow_server():
    """Return how to start processes that have TensorFlow: a server forks them that imported it and started none of its threads.

    A fork of the tests' own process does not survive if TensorFlow computed in it, and importing it takes most of a job's time.
    """
    forkserver.set_forkserver_preload(["tensorflow"])
    with mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES=""):
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


def _rank(main, arguments, environment, killed_at, printed):
    os.environ |= environment
    for number, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if killed_at:
        die_after(killed_at)
    status = main(arguments)
    sys.stdout.flush()
    os._exit(status)


def end_of(context, main, arguments, folder, ranks=1, killed_at=0):
    """Run the ranks of a job in processes of their own, all killed at a step; return how each ended."""
    printed = [[folder / f"{stream}.{rank}" for stream in ("stdout", "stderr")] for rank in range(ranks)]
    with claimed_ports(1) as port:
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        processes = [
            context.Process(target=_rank, args=(main, arguments, environment | {"RANK": str(rank)}, killed_at, printed[rank]))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        if killed_at:  # all at once, as where a machine fails: gloo can wait for ever for a peer that is gone
            wait([process.sentinel for process in processes])
            for process in processes:
                process.kill()
        for process in processes:
            process.join()
    return [
        Ended(process.exitcode, *(path.read_text() for path in each)) for process, each in zip(processes, printed, strict=True)
    ]


def run(main, arguments, tmp_path, output, ranks=1, killed_at=0):
    """Run a job of PyTorch's in forks of this process, all killed at a step; return the result and the index log's lines."""
    import torch._dynamo  # noqa: F401 - what the first optimizer imports, two seconds long: here once for all jobs that are forked

    return result_of(multiprocessing.get_context("fork"), main, arguments, tmp_path, output, ranks, killed_at)


def result_of(context, main, arguments, tmp_path, output, ranks=1, killed_at=0):
    """The same, in the processes of `context`."""
    log = tmp_path / f"{output}.{len(list(tmp_path.iterdir()))}.log"
    arguments = [*map(str, arguments), "--output", str(tmp_path / output), "--index-log", str(log)]
    ended = end_of(context, main, arguments, tmp_path, ranks, killed_at)
    assert [each.status for each in ended] == [-signal.SIGKILL if killed_at else 0] * ranks, ended
    return None if killed_at else json.loads((tmp_path / output / "result.json").read_text()), lines_of(log)


def lines_of(index_log):
    return [[int(word) for word in line.split()] for line in index_log.read_text().splitlines()]


def indices(*logs):
    """The samples of each epoch, each with how often it was consumed."""
    return Counter((epoch, index) for log in logs for _, epoch, _, *found in log for index in found)


def until(log, step):
    return [line for line in log if line[2] <= step]


def same(whole, resumed, *logs):
    whole_result, whole_log = whole
    assert resumed["weights_sha256"] == whole_result["weights_sha256"]
    assert resumed["order_sha256"] == whole_result["order_sha256"]
    assert indices(*logs) == indices(whole_log)
