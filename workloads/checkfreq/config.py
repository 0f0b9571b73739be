"""The job's command line options: those of the original's trainer, some of them without effect, and ours."""

import argparse
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError, nearest
from iotwin.common.progress import note
from iotwin.workloads.checkfreq import LAYOUTS, OURS
from iotwin.workloads.common.program import require_at_least
from iotwin.workloads.common.variant import ORIGINAL, add_variant_options, check_variant
from iotwin.workloads.models import IMAGE_CLASSIFIERS, PRESETS

POLICIES = ("auto", "sync", "epoch", "none")
CACHED = "cached"
_INERT_FLAGS = (
    "--checkfreq", "--overwrite", "--synchronous", "--tic-tac", "--rename", "--channels-last", "--pretrained", "--nopin",
    "--dali", "--dali_cpu", "--mint", "--persist", "--cf_iterator", "--keep-batchnorm-fp32", "--dynamic-loss-scale",
)  # fmt: skip
_INERT_VALUES = (
    "--tic-tac-len", "--cache_size", "--opt-level", "--loss-scale", "--static-loss-scale", "--local_rank", "--nnodes",
    "--node_rank", "--node_ip_list", "--node_port_list", "--classes", "--prof", "--start-epoch",
)  # fmt: skip


@dataclass(frozen=True)
class CheckFreqConfig:
    """One training job."""

    data: Path
    output: Path
    arch: str
    preset: str
    workers: int
    batch_size: int  # per rank
    epochs: int
    iters: int  # steps of an epoch, at most; below 0: all
    steps_per_run: int  # of this run, at most; below 0: all
    lr: float  # at a global batch of 256, in proportion to it
    momentum: float
    wd: float
    amp: bool
    sync_bn: bool
    barrier: bool
    deterministic: bool
    noeval: bool
    print_freq: int
    chk_policy: str
    chk_prefix: Path | None
    chk_freq: int  # steps; 0: as measured
    chk_seconds: float
    max_overhead: float  # per cent
    mtbf: float | None
    dynamic: bool
    in_flight: int
    keep_all: bool
    layout: str
    resume: bool
    profile_cache: Path | None
    reprofile: bool
    index_log: Path | None
    threads: int
    seed: int
    variant: str

    @property
    def store(self) -> Path:
        """The directory of the checkpoints."""
        return self.chk_prefix or self.output / "checkpoints"

    @property
    def network(self) -> str:
        """The network's name in checkpoints; another job's checkpoint is refused by it."""
        return f"{self.arch} {self.preset}"


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the job's options to `parser`."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="directory of train/CLASS/*.JPEG and val/CLASS/*.JPEG")
    add("--output", type=Path, required=True, metavar="DIR", help="directory for checkpoints, tables and result.json")
    add("-a", "--arch", default="resnet18", metavar="NAME", help=f"{', '.join(IMAGE_CLASSIFIERS)} (default %(default)s)")
    add("--preset", default="paper", metavar="NAME", help="paper: as published; tiny: for a CPU (default %(default)s)")
    add("-j", "--workers", type=int, default=4, help="loader processes per rank; 0: none (default %(default)s)")
    add("-b", "--batch-size", type=int, default=256, help="images per step and rank (default %(default)s)")
    add("--epochs", type=int, default=3, help="epochs to train (default %(default)s)")
    add("--iters", type=int, default=-1, metavar="N", help="end each epoch after N steps")
    add("--steps_per_run", type=int, default=-1, metavar="N", help="exit after N steps, as if killed")
    add("--lr", type=float, default=0.1, help="learning rate at a global batch of 256, scaled with it (default %(default)s)")
    add("--momentum", type=float, default=0.9, help="momentum of SGD (default %(default)s)")
    add("--wd", "--weight-decay", type=float, default=1e-4, help="weight decay (default %(default)s)")
    add("--fp16", "--amp", dest="amp", action="store_true", help="compute in half precision where it is safe")
    add("--sync_bn", action="store_true", help="normalise over the batches of all ranks")
    add("--barrier", action="store_true", help="let all ranks wait for one another after each step")
    add("--deterministic", action="store_true", help="give the same bits in every run on the same device")
    add("--noeval", "--no-eval", action="store_true", help="do not evaluate after epochs")
    add("-p", "--print-freq", type=int, default=10, metavar="N", help="print a line every N steps; 0: none (default %(default)s)")
    add("--threads", type=int, default=0, help="CPU threads that compute; 0: torch's choice (default %(default)s)")
    add("--seed", type=int, default=1, help="seed of weights, order and augmentation (default %(default)s)")
    add("--index-log", type=Path, metavar="FILE", help="append a line per batch: rank epoch step index index ...")
    _add_checkpoints(parser)
    add_variant_options(parser, (ORIGINAL, "instrumented"))
    for flag in _INERT_FLAGS:
        add(flag, action="append_const", const=flag, dest="inert", help=argparse.SUPPRESS)
    for flag in _INERT_VALUES:
        add(flag, metavar="VALUE", action=_Inert, dest="inert", help=argparse.SUPPRESS)


def _add_checkpoints(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--chk-policy",
        metavar="NAME",
        help="auto: in two phases, as often as measured costs allow (default); sync: training "
        "waits; epoch: at ends of epochs only, training waits; none",
    )
    add("--chk_mode_baseline", action="store_true", help="as --chk-policy sync, or epoch without --chk-freq")
    add(
        "--chk-freq",
        default="0",
        metavar="N",
        help="steps between checkpoints; 0 or cached: as planned from measured or cached costs (default 0)",
    )
    add("--chk-seconds", type=float, default=0.0, metavar="S", help="also take a checkpoint every S seconds; 0: never (default)")
    add("--chk-prefix", type=Path, metavar="DIR", help="the store of the checkpoints (default OUTPUT/checkpoints)")
    add("--max-overhead", type=float, default=5.0, metavar="P", help="per cent of time for checkpoints (default %(default)s)")
    add("--mtbf", type=float, metavar="S", help="mean seconds between failures, which set a least interval")
    add("--dynamic", action="store_true", help="correct the interval in the whole job, not only until the bound holds")
    add("--in-flight", type=int, default=1, metavar="N", help="most unfinished checkpoints at once (default %(default)s)")
    add("--keep-all", action="store_true", help="keep all checkpoints, not only the newest and those of ends of epochs")
    add("--layout", default=OURS, metavar="NAME", help="ours: the store; theirs: the original's files (default %(default)s)")
    add("--resume", nargs="?", const="auto", default="never", metavar="auto|never", help="auto: from the newest valid checkpoint")
    add("--profile-cache", type=Path, metavar="DIR", help="folder of measured costs (default ~/.cache/iotwin/checkfreq)")
    add("--reprofile", action="store_true", help="measure again, without cached costs")


class _Inert(argparse.Action):
    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.inert = [*(namespace.inert or []), option_string]


def parse_config(args: Namespace) -> CheckFreqConfig:
    """Return the job that `args` describe. Raises UsageError for an impossible value."""
    values = dict(vars(args))
    for flag in values.pop("inert") or []:
        note(f"{flag} is of no effect")
    check_variant(args.variant, values.pop("sleep"), values.pop("variants"))
    values["chk_freq"] = _interval(args.chk_freq)
    baseline = values.pop("chk_mode_baseline")
    values["chk_policy"] = args.chk_policy or ("auto" if not baseline else "sync" if values["chk_freq"] else "epoch")
    for name, known in (
        ("arch", IMAGE_CLASSIFIERS),
        ("preset", PRESETS),
        ("chk_policy", POLICIES),
        ("resume", ("auto", "never")),
        ("layout", LAYOUTS),
    ):
        if values[name] not in known:
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option} '{values[name]}' is unknown{nearest(values[name], list(known))}; choose {', '.join(known)}"
            )
    values["resume"] = args.resume == "auto"
    config = CheckFreqConfig(**values)
    require_at_least(1, epochs=config.epochs, batch_size=config.batch_size, in_flight=config.in_flight)
    require_at_least(0, workers=config.workers, chk_seconds=config.chk_seconds, lr=config.lr, wd=config.wd,
                     threads=config.threads, seed=config.seed, print_freq=config.print_freq)  # fmt: skip
    if not 0 < config.max_overhead < 1000:
        raise UsageError(f"--max-overhead {config.max_overhead} must be above 0 per cent and below 1000")
    if config.mtbf is not None and not config.mtbf > 0:
        raise UsageError(f"--mtbf {config.mtbf} must be above 0 seconds")
    return config


def _interval(text: str) -> int:
    if text == CACHED:
        return 0
    if not text.isdecimal():
        raise UsageError(f"--chk-freq '{text}' must be a number of steps, 0, or cached")
    return int(text)
