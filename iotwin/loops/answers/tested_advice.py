"""Advise on a traced job: what limits the job, and which changes help. Each change is first tested on the job's twin."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import scratch_folder
from iotwin.common.html_card import html_card
from iotwin.loops.answers.bottleneck import JobVerdict, verdict_of
from iotwin.loops.answers.checkpoint_findings import checkpoint_findings
from iotwin.loops.answers.data_findings import DataReads, data_findings
from iotwin.loops.answers.finding import JobFinding, describe_change, describe_gain
from iotwin.loops.answers.loader_findings import loader_findings
from iotwin.loops.answers.recipe import Recipe, identity_of
from iotwin.loops.answers.training_view import TrainingView, training_view
from iotwin.loops.answers.twin_runs import TrainingFigures, TwinVariant, ratios, run_variants
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.verdict.caveats import others_cpus

if TYPE_CHECKING:
    from iotwin.benchmark.fit.fitted import Fitted

_UNCHANGED = "the twin as it is"
_LEAST_GAIN = 0.03  # step times of two runs of one job differ by as much
# The order of findings with about equal gains: causes that explain more come first, then changes that are easier to make.
_ORDER = (
    "small_reads", "reopened_files", "metadata_storm", "cache_too_small", "cold_random_reads", "read_twice", "uneven_ranks",
    "checkpoint_stall", "shallow_prefetch", "few_loaders", "slow_decode", "slow_storage", "evaluation_stall",
    "unaligned_direct_io", "start_up", "checkpoint_not_durable",
)  # fmt: skip


@dataclass
class Advice:
    """The verdict on the job of the trace at the path `trace`, and the findings, best first.

    `step_s`, `twin_step_s`: seconds of a step of the job and of its twin. `recipe`: how the changes were tested (see Recipe),
    None if none was.
    """

    trace: str
    verdict: JobVerdict
    findings: list[JobFinding]
    crowded: bool
    step_s: float | None = None
    twin_step_s: float | None = None
    notes: list[str] = field(default_factory=list)
    recipe: dict[str, Any] | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the advice as a JSON document (see docs/advise.md)."""
        return {
            "trace": self.trace,
            "verdict": asdict(self.verdict),
            "findings": [each.to_document(rank) for rank, each in enumerate(self.findings, 1)],
            "machine": {"crowded": self.crowded},
            "step_s": self.step_s, "twin_step_s": self.twin_step_s, "notes": self.notes,
            "recipe": self.recipe,
        }  # fmt: skip

    def __repr__(self) -> str:
        kinds = ", ".join(each.kind for each in self.findings) or "none"
        return f"Advice({self.trace!r}: {self.verdict.sentence} Findings: {kinds})"

    def _repr_html_(self) -> str:
        findings = self.to_document()["findings"]
        rows = [(each["rank"], each["kind"], each["sentence"], describe_change(each), describe_gain(each)) for each in findings]
        return html_card(self.verdict.sentence, self.notes, ("rank", "kind", "finding", "change", "gain"), rows)


def advise(trace: Trace, reruns: Sequence[Trace] = (), runs: int = 3, tested: bool = True) -> Advice:
    """Return the advice on the traced job. Each change is tried `runs` times on the job's twin, unless `tested` is False.

    `reruns`: traces of the same job; their step times widen what counts as noise. Raises IotwinError if there is nothing to fit.
    """
    from iotwin.benchmark.fit.fit_trace import quiet_fit

    fitted = quiet_fit(trace)
    view = training_view(trace, fitted)
    advice = Advice(str(trace.path), verdict_of(trace), [], others_cpus(trace) > 0)
    if view is None:
        return advice
    advice.step_s = view.step_s
    advice.findings = [*data_findings(view), *checkpoint_findings(view), *loader_findings(view)]
    if tested and any(each.change.is_testable for each in advice.findings):
        try:
            _test(advice, view, fitted, runs, _noise(view, reruns))
        except IotwinError as error:
            advice.notes.append(f"no change was tested: {error}")
    advice.findings.sort(key=_rank)
    return advice


def _noise(view: TrainingView, reruns: Sequence[Trace]) -> float:
    """Return the largest relative difference of a rerun's step time; 0 without reruns."""
    from iotwin.benchmark.fit.fit_trace import quiet_fit

    views = [training_view(rerun, quiet_fit(rerun)) for rerun in reruns]
    return max((abs(other.step_s / view.step_s - 1) for other in views if other is not None), default=0.0)


def _test(advice: Advice, view: TrainingView, fitted: "Fitted", runs: int, noise: float) -> None:
    """Run the twin unchanged and with each change, and note the ratios of step times in the findings."""
    data = [path for name, _ in fitted.files if (path := Path(fitted.config.dataset.data_folder) / name).is_file()]
    if len(data) < len(fitted.files):
        missing = len(fitted.files) - len(data)
        raise IotwinError(f"{missing} of {len(fitted.files)} files of the data set are not here; run advise where the job ran")
    is_cold = DataReads(view).is_cold
    with scratch_folder() as folder:
        fitted.write(folder / "twin.yaml")
        testable = [each for each in advice.findings if each.change.is_testable and _is_followed(each, folder / "twin.yaml")]
        changes = [(each.change.overrides or (), is_cold and not each.change.warms) for each in testable]
        variants: dict[tuple[tuple[str, ...], bool], TwinVariant] = {((), is_cold): TwinVariant(_UNCHANGED, (), is_cold)}
        for each, change in zip(testable, changes, strict=True):  # findings with the same change share its runs
            variants.setdefault(change, TwinVariant(f"{each.kind}: {each.change}", *change))
        recipe, tried = Recipe(folder / "twin.yaml"), list(variants.values())
        found = run_variants(folder / "twin.yaml", tried, runs, data, clock="virtual")
        advice.recipe = _recipe_of(view.trace, recipe, folder / "twin.yaml", tried, runs)
    unchanged = found[_UNCHANGED]
    advice.twin_step_s = median(each.step_s for each in unchanged)
    untraced = float(np.clip(advice.twin_step_s, view.step_s - view.tracing_s, view.step_s))
    distance = abs(advice.twin_step_s / untraced - 1)
    for each, change in zip(testable, changes, strict=True):
        _judge(each, found[variants[change].name], unchanged, max(distance, noise, _LEAST_GAIN))


def _recipe_of(trace: Trace, recipe: Recipe, twin: Path, variants: Sequence[TwinVariant], runs: int) -> dict[str, Any]:
    """Return the recipe of the runs. It identifies the trace, and the twin and its recording, which are temporary, by digests."""
    from iotwin.workload_yaml import load

    composed = {
        None if each.name == _UNCHANGED else each.name: (load(twin, list(each.overrides)), each.overrides) for each in variants
    }
    found = recipe.document(composed)
    for row, each in zip(found["variants"], variants, strict=True):
        row["cache"] = "cold" if each.is_cold else "warm"
    digests = {name: found[name] and {"sha256": found[name]["sha256"]} for name in ("twin", "recording")}
    return {"trace": identity_of(trace.document), "runs": runs, "clock": "virtual"} | found | digests


def _is_followed(finding: JobFinding, twin: Path) -> bool:
    """Return whether the twin can make the finding's change. If not, note the reason in the finding."""
    from iotwin.loops.emulation import check_edits
    from iotwin.workload_yaml import load

    try:
        config = load(twin, list(finding.change.overrides or ()))
        check_edits(config, config.twin.ranks)
    except UsageError as error:
        finding.notes.append(f"not tested: {error}")
        return False
    return True


def _judge(finding: JobFinding, changed: Sequence[TrainingFigures], unchanged: Sequence[TrainingFigures], noise: float) -> None:
    """Note the predicted ratio of step times, and whether its gain exceeds `noise` (a share of the step time)."""
    ratio = ratios(changed, unchanged, finding.of_run)
    if ratio is None:
        return
    if ratio.value < finding.floor:
        finding.notes.append(f"limited by the processors, of which the job uses {finding.floor:.0%}")
        low, high = (None if bound is None else max(bound, finding.floor) for bound in ratio[1:])
        ratio = ratio._replace(value=finding.floor, low=low, high=high)
    if finding.of_run:
        finding.notes.append("the ratio is that of the durations of whole runs")
    if ratio.low is not None and ratio.low > 1:
        finding.notes.append(f"costs {ratio.value - 1:.1%} of the step time")
    finding.predicted, finding.runs = ratio, len(changed)
    finding.significant = (ratio.value if ratio.high is None else ratio.high) < 1 and 1 - ratio.value > noise


def _rank(finding: JobFinding) -> tuple[bool, int, int]:
    """Return the key by which findings are sorted. Gains are alike if they round to the same multiple of 2 * _LEAST_GAIN."""
    gain = 0.0 if finding.predicted is None else 1 - finding.predicted.value
    return not finding.significant, -round(gain / (2 * _LEAST_GAIN)), _ORDER.index(finding.kind)
