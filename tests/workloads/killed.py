"""Jobs killed at a step, in processes of their own: what they consumed, and how what resumes them ends.

As a program, ``python -m tests.workloads.killed STEP MODULE [OPTION...]``: one rank of a job, which kills itself after that step
(0: never), for frameworks that do not survive a fork.
"""

import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from multiprocessing.connection import wait

from iotwin.common.ranks import claimed_ports
from iotwin.workloads.state import keeper


def _die_after(step):
    consumed = keeper.Keeper.consumed

    def then_die(self, *arguments):
        consumed(self, *arguments)
        if self.steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    keeper.Keeper.consumed = then_die


def _rank(main, arguments, environment, killed_at, report):
    os.environ |= environment
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    if killed_at:
        _die_after(killed_at)
    os._exit(main(arguments))


def run(main, arguments, tmp_path, output, ranks=1, killed_at=0):
    """Run a job of PyTorch's in processes of its own, all killed at a step; return the result and the index log's lines."""
    import torch._dynamo  # noqa: F401 - what the first optimizer imports, two seconds long: here once for all jobs that are forked

    log = tmp_path / f"{output}.{len(list(tmp_path.iterdir()))}.log"
    arguments = [*map(str, arguments), "--output", str(tmp_path / output), "--index-log", str(log)]
    context = multiprocessing.get_context("fork")
    reports = [tmp_path / f"stderr.{rank}" for rank in range(ranks)]
    with claimed_ports(1) as port:
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        processes = [
            context.Process(target=_rank, args=(main, arguments, environment | {"RANK": str(rank)}, killed_at, reports[rank]))
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
    expected = -signal.SIGKILL if killed_at else 0
    assert [process.exitcode for process in processes] == [expected] * ranks, [each.read_text() for each in reports]
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


if __name__ == "__main__":
    if int(sys.argv[1]):
        _die_after(int(sys.argv[1]))
    sys.exit(importlib.import_module(f"{sys.argv[2]}.__main__").main(sys.argv[3:]))
