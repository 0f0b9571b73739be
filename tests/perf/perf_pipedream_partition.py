"""PipeDream's automatic partition against an equal split: throughput of real layers on two ranks, and the plan's prediction.

    python -m tests.perf.perf_pipedream_partition [rank FOLDER]

Each rank computes on one thread. Three models are profiled on one thread and optimised for two stages. `rank` makes this one
of the two ranks that train the models whose plans are in FOLDER.

Other programs that compute lengthen the time of a minibatch, and much less the processor time of the busiest rank, which is the
time of a minibatch if each rank has a processor and no rank waits.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch import distributed

from iotwin.common.ranks import claimed_ports
from iotwin.workloads.common.torch_ranks import join_ranks
from iotwin.workloads.launch import local_plan
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.plan.costs import CostOptions, Level
from iotwin.workloads.pipedream.plan.plan_file import plan_document, read_plan
from iotwin.workloads.pipedream.plan.report import optimize
from iotwin.workloads.pipedream.profile.model_profile import ProfileOptions
from iotwin.workloads.pipedream.profile.on_ranks import profile_on_ranks
from iotwin.workloads.pipedream.runtime.engine import StageRank, training_of
from iotwin.workloads.pipedream.runtime.weights import SgdVersions
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage
from tests.perf.figures import Figure

_MODELS = {"vgg16": 64, "alexnet": 128, "densenet121": 32}  # samples per minibatch
_RANKS = 2
_MINIBATCHES = 12
_REPEATS = 3
_ROUNDS = 5  # each with a profile
_BANDWIDTH = 1e9  # bytes per second between two ranks of a machine


def _plan_of(model: str) -> PipelinePlan:
    """Return the fastest plan with two stages of one rank, by a profile of two ranks with one thread each."""
    found = profile_on_ranks(ProfileOptions(model, "tiny", _MODELS[model], minibatches=10, warm_up=2, threads=1), _RANKS)
    machines = (Level(_RANKS, _BANDWIDTH),)
    return optimize(found.graph, CostOptions(machines, straight=True, exact_workers=True, compression=1.0)).plan


def _seconds_per_minibatch(model: str, plan: PipelinePlan, rank: int) -> tuple[float, float]:
    """Train on two ranks. Return the seconds, and the busiest rank's processor seconds, of a minibatch in steady state."""
    torch.manual_seed(0)
    built = build(model)
    tensors = built.make_inputs(_MODELS[model])
    stage = StageRank(training_of(built, plan, range(_RANKS)), rank, SgdVersions(0.001))
    ends_s: list[tuple[float, float]] = []
    stage.observe = lambda *_: ends_s.append((time.perf_counter(), time.process_time()))
    stage.train(lambda _: (tensors[:1], tensors[1:]), _MINIBATCHES)
    steady = torch.tensor(ends_s[_RANKS:-_RANKS], dtype=torch.float64)
    spent_s = (steady[-1] - steady[0]) / (len(steady) - 1)
    distributed.all_reduce(spent_s, distributed.ReduceOp.MAX)
    return float(spent_s[0]), float(spent_s[1])


def run_rank(folder: Path) -> None:
    """Measure as one of two ranks: both splits of each model in turn, several times."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    equal = PipelinePlan(tuple(Stage(k, (k,), 1.0, 2.0) for k in range(_RANKS)))
    with join_ranks(gpu=False) as ranks:
        for model in _MODELS:
            plans = {"equal": equal, "planned": read_plan(folder / f"{model}.json")}
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
            for _ in range(_REPEATS):
                for name, plan in plans.items():
                    times[name].append(_seconds_per_minibatch(model, plan, ranks.rank))
            found[model] = {name: [median(each) for each in zip(*own, strict=True)] for name, own in times.items()}
        distributed.barrier()
    print(json.dumps(found), flush=True)


def _measured_round() -> dict[str, tuple[dict[str, list[float]], float]]:
    """Profile, plan and train each model once. Return by model what `run_rank` found, and the plan's seconds per minibatch."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plans = {model: _plan_of(model) for model in _MODELS}
        for model, plan in plans.items():
            (folder / f"{model}.json").write_text(json.dumps(plan_document(plan)))
        with claimed_ports(_RANKS) as port:
            ending = local_plan([__spec__.name, "rank", scratch], _RANKS, port, folder).run()
        assert not ending.reason, ending.reason
        found = json.loads((folder / f"rank-{_RANKS - 1}.log").read_text().splitlines()[-1])
    return {model: (found[model], plan.bottleneck.seconds_per_minibatch) for model, plan in plans.items()}


def measure() -> Iterator[Figure]:
    """Yield the figures, medians of rounds: what else a machine does changes its speed between a profile and a training."""
    rounds = [_measured_round() for _ in range(_ROUNDS)]
    for model, batch in _MODELS.items():
        gains, busy_gains, lateness = [], [], []
        for found, expected_s in (each[model] for each in rounds):
            (equal_s, equal_busy_s), (planned_s, busy_s) = found["equal"], found["planned"]
            gains.append(equal_s / planned_s)
            busy_gains.append(equal_busy_s / busy_s)
            lateness.append(planned_s / expected_s)
        for name, ratios, bound, at_most in (
            ("throughput of the plan / of an equal split", gains, 1.0, False),
            ("busiest rank's processor time of an equal split / of the plan", busy_gains, 1.0, False),
            ("time per minibatch / the plan's", lateness, 1.05, True),
        ):
            each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
            detail = f"{model} tiny, minibatches of {batch}, {_RANKS} ranks; rounds: {each}"
            yield Figure(f"{model}: {name}", median(ratios), bound, at_most, detail)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(Path(sys.argv[2]))
    else:
        for figure in measure():
            print(figure.line(), flush=True)
