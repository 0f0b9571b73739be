"""Loader by loader: is a script that a public library resumes, killed anywhere, the uninterrupted run again?

python -m tests.perf.perf_court [NAME ...]: only these rows. Each row needs the library that it names; others are left out. Run it
with the Python of an environment that has them: torch, torchdata, lightning, accelerate, transformers, webdataset,
mosaicml-streaming, datasets.
"""

import importlib.metadata
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from iotwin.workloads.detrain.court.kill_points import BATCH, BATCHES, CALLS
from iotwin.workloads.detrain.court.trial import EXACT, CourtCase, Kill, Trial
from tests.conftest import ROOT
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_STACKS = ROOT / "tests" / "workloads" / "detrain" / "stacks"


class Stack(NamedTuple):
    """A script, its arguments, the distribution that must be installed, and whether every kill must be exact."""

    script: str
    arguments: tuple[str, ...] = ()
    distribution: str = "torch"
    must_be_exact: bool = False


STACKS = {
    "torch, all state saved by hand": Stack("torch_exact", (), "torch", True),
    "torch, all state saved by hand, 2 workers": Stack("torch_exact", ("--workers", "2"), "torch", True),
    "torch, checkpoint at epoch ends": Stack("torch_epochs", ("--seed", "1", "--epochs", "2")),
    "torch, batches passed over": Stack("torch_naive"),
    "torchdata StatefulDataLoader": Stack("torchdata_stateful", (), "torchdata"),
    "torchdata StatefulDataLoader, generator saved": Stack("torchdata_stateful", ("--rng",), "torchdata", True),
    "Lightning": Stack("lightning_fit", (), "lightning"),
    "Lightning, StatefulDataLoader": Stack("lightning_fit", ("--stateful",), "lightning"),
    "Accelerate": Stack("accelerate_skip", (), "accelerate"),
    "Accelerate, seedable sampler": Stack("accelerate_skip", ("--seedable",), "accelerate"),
    "Accelerate, stateful loader": Stack("accelerate_skip", ("--stateful",), "accelerate"),
    "Hugging Face Trainer": Stack("hf_trainer", (), "transformers"),
    "WebDataset": Stack("webdataset_shards", (), "webdataset"),
    "MosaicML streaming": Stack("mosaicml_streaming", (), "mosaicml-streaming"),
    "Hugging Face datasets, streaming": Stack("hf_datasets_stream", (), "datasets"),
    "Hugging Face datasets, streaming, not shuffled": Stack("hf_datasets_stream", ("--no-shuffle",), "datasets"),
}


def measure(names: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures of the rows called `names`, by default all whose library is installed."""
    for name in names or STACKS:
        stack = STACKS[name]
        if version := _version(stack.distribution):
            yield from _figures(name, stack, f"{stack.distribution} {version}")
        else:
            print(f"{name}: left out, {stack.distribution} is not installed", file=sys.stderr)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _figures(name: str, stack: Stack, version: str) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-") as folder:
        script = _STACKS / f"{stack.script}.py"
        case = CourtCase(script, list(stack.arguments), Path(folder).resolve(), None, (BATCHES, CALLS), None, 0)
        with Trial(case) as trial:
            trial.run_uninterrupted()
            assert trial.repeat_difference is None, trial.repeat_difference
            begin = time.monotonic()
            kills = list(trial.judged(trial.points()))
    seconds = (time.monotonic() - begin) / len(kills)
    for kind, chosen in (
        ("after an update", [kill for kill in kills if kill.at == BATCH]),
        ("before a write, fsync, rename or unlink", [kill for kill in kills if kill.at != BATCH]),
    ):
        exact = sum(kill.verdict == EXACT for kill in chosen)
        bound = len(chosen) if stack.must_be_exact else None
        detail = f"{version}; {_outcomes(chosen)}; {seconds:.1f} s a kill"
        yield Figure(f"court, {name}: of {len(chosen)} kills {kind}, those that resume exactly", exact, bound, False, detail)


def _outcomes(kills: Sequence[Kill]) -> str:
    """Return how often each verdict was given, each with the commonest cause."""
    parts = []
    for verdict, count in Counter(kill.verdict for kill in kills).most_common():
        causes = Counter(_cause(kill) for kill in kills if kill.verdict == verdict).most_common(1)
        parts.append(f"{count} {verdict}" + (f" ({causes[0][0]})" if verdict != EXACT else ""))
    return ", ".join(parts)


def _cause(kill: Kill) -> str:
    if kill.first_difference is None:
        return " ".join((kill.error or "").split()[:12])
    named = f" of {kill.first_difference.name}" if kill.first_difference.name else ""
    return f"first in {kill.first_difference.what}{named}"


if __name__ == "__main__":
    record_figures("court", measure(sys.argv[1:]))
