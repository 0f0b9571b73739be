"""PipeDream's closed loop: a traced training of four ranks, its fitted twin, the twin of its plan alone, and wrong twins.

    python -m tests.perf.perf_pipedream_loop

The plan is made from a profile, without a trace.
"""

import copy
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from iotwin.benchmark.fit.fit_trace import fit
from iotwin.command_lines import own_command
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.loops.pipeline_twin import PipelineTraining, pipeline_twin
from iotwin.loops.traced_run import run_traced
from iotwin.trace_store.reader import Trace
from iotwin.tracesim import compare
from iotwin.workload_yaml import Config, Duration, Quantiles, dump
from iotwin.workload_yaml.schema import PipelineStage
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.stages import equal_split
from iotwin.workloads.pipedream.plan.convert import convert
from iotwin.workloads.pipedream.profile.model_profile import ProfileOptions
from iotwin.workloads.pipedream.profile.on_ranks import profile_on_ranks
from iotwin.workloads.policies.pipeline import PipelinePlan
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_IMAGES, _CLASSES, _BATCH, _EPOCHS, _RUNS = 480, 4, 16, 3, 3
# Stage of each tenth of the network. The second stage takes so much longest that two CPUs suffice for four ranks and two loaders.
_PARTS = (0, *[1] * 8, 2)
_RANKS = ((0, 1), (2,), (3,))


def _plan(images: Path) -> tuple[PipelinePlan, float]:
    """Return the plan of the network by a profile of as many ranks as train, and the seconds of loading a minibatch."""
    options = ProfileOptions("vgg16", "tiny", _BATCH, minibatches=20, warm_up=3, data_dir=images, threads=1)
    found = profile_on_ranks(options, sum(map(len, _RANKS)))
    layers = [node.id for node in found.graph.nodes if not node.is_input]
    parts = equal_split(build("vgg16", "tiny", _CLASSES).module, len(_PARTS))
    stages = dict.fromkeys(found.graph.index, 0) | {node: _PARTS[part] for node, part in zip(layers, parts, strict=True)}
    replicas = ",".join(f"{stage}:{len(ranks)}" for stage, ranks in enumerate(_RANKS))
    return convert(found.graph.with_stages(stages), replicas).plan, float(found.document["load_s"])


def _sum(first: Duration, second: Duration) -> Duration:
    assert isinstance(first, Quantiles) and isinstance(second, Quantiles)
    return Quantiles([a + b for a, b in zip(first.values, second.values, strict=True)])


def _stages(config: Config) -> list[PipelineStage]:
    assert config.twin.pipeline is not None
    return config.twin.pipeline.stages


def _joined(ranks: list[int], *stages: PipelineStage) -> PipelineStage:
    """Return a stage that computes what `stages` do."""
    whole = copy.deepcopy(stages[0])
    whole.ranks = ranks
    for stage in stages[1:]:
        whole.forward_s, whole.backward_s = _sum(whole.forward_s, stage.forward_s), _sum(whole.backward_s, stage.backward_s)
    return whole


def _one_stage_fewer(config: Config) -> None:
    first, second, third = stages = _stages(config)
    stages[:] = [first, _joined([2], second, third)]


def _replicas_swapped(config: Config) -> None:
    first, second, _ = _stages(config)
    first.ranks, second.ranks = [0], [1, 2]
    for file in config.twin.checkpoint.files:
        file.rank = 1 if file.rank == 2 else file.rank


def _flushed(config: Config) -> None:
    assert config.twin.pipeline is not None
    config.twin.pipeline.schedule = "flush"


def _on_rank_0(config: Config) -> None:
    for file in config.twin.checkpoint.files:
        file.rank = 0


def _all_read(config: Config) -> None:
    stages = _stages(config)
    stages[:] = [_joined([0, 1, 2, 3], *stages)]


_WRONG: dict[str, Callable[[Config], None]] = {
    "one stage fewer": _one_stage_fewer,
    "replicas swapped": _replicas_swapped,
    "flush for 1f1b": _flushed,
    "checkpoints on rank 0": _on_rank_0,
    "all ranks read": _all_read,
}


class _Loop:
    """The folder of one measurement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        generate(ImagenetLayout(classes=_CLASSES, scale=0.2), path / "images", samples=_IMAGES, seed=1)
        conf = {"module_to_stage_map": [*_PARTS, _PARTS[-1]], "stage_to_rank_map": dict(enumerate(_RANKS))}
        (path / "conf.json").write_text(json.dumps(conf))

    def job(self, number: int) -> Trace:
        """Train under the tracer."""
        options = {
            "-m": "vgg16", "--preset": "tiny", "--data_dir": self.path / "images", "--config_path": self.path / "conf.json",
            "-b": _BATCH, "--eval-batch-size": _BATCH, "-j": 1, "--epochs": _EPOCHS, "--lr": 0.01,
            "--checkpoint_dir": self.path / f"out{number}", "--num_ranks_in_server": 4, "--variant": "instrumented",
        }  # fmt: skip
        words = [str(word) for pair in options.items() for word in pair]
        launched = [sys.executable, "-m", "iotwin.workloads.launch", "4", "iotwin.workloads.pipedream", *words]
        run_traced(launched, self.path / f"job{number}.trace", "pipedream", prints_events=False)
        return Trace(self.path / f"job{number}.trace")

    def twin(self, name: str, config: Config) -> Trace:
        """Run a twin under the tracer. Start-up is left out."""
        own = self.path / name.replace(" ", "_")
        config.twin.startup_time, config.twin.init_time = 0.0, 0.0
        config.checkpoint.checkpoint_folder, config.output.folder = f"{own}_checkpoints", f"{own}_output"
        dump(config, yaml := own.with_suffix(".yaml"))
        run_traced(own_command("emulate", yaml), trace := own.with_suffix(".trace"), "pipedream", prints_events=False)
        return Trace(trace)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as name:
        loop = _Loop(Path(name))
        plan, load_s = _plan(loop.path / "images")
        jobs = [loop.job(number) for number in range(_RUNS)]
        fitted = fit(jobs[0]).config
        wrong = {kind: copy.deepcopy(fitted) for kind in _WRONG}
        found = compare(jobs[0], loop.twin("fitted", fitted), repeats=jobs[1:])
        floor = found.to_document()["noise_floor"] or 1.0
        bound = min(0.95, floor)
        yield Figure("pipeline: fitted twin against the traced run", found.overall, bound, False, f"reruns {floor:.3f}")
        planned = pipeline_twin(plan, loop.path / "images", PipelineTraining(_BATCH, None, _EPOCHS, _BATCH, 1, load_s))
        score = compare(jobs[0], loop.twin("planned", planned)).overall
        times = ", ".join(f"{1e3 * stage.forward_s:.0f}+{1e3 * stage.backward_s:.0f} ms" for stage in plan.stages)
        yield Figure("pipeline: twin of the plan alone against the traced run", score, 0.90, False, f"stages {times}")
        below, told = 0, []
        for kind, spoil in _WRONG.items():
            spoil(wrong[kind])
            score = compare(jobs[0], loop.twin(kind, wrong[kind])).overall
            below += score < found.overall
            told.append(f"{kind} {score:.3f}")
        yield Figure("pipeline: wrong twins below the fitted one", below, len(_WRONG), False, ", ".join(told))


if __name__ == "__main__":
    record_figures("pipedream_loop", measure())
