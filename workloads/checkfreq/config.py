"""The job's command line options: all options of CheckFreq's own trainer, some of them without effect, and new ones."""

import argparse
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotwin.common.errors import UsageError, nearest
from iotwin.common.progress import note
from iotwin.workloads.checkfreq import LAYOUTS, OURS
from iotwin.workloads.common.options import add_options, check_least, option
from iotwin.workloads.common.variant import INSTRUMENTED, ORIGINAL, add_variant_options, check_variant
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


@dataclass(frozen=True, kw_only=True)
class CheckFreqConfig:
    """The options of an image classification job with CheckFreq's checkpoints."""

    data: Path = option("directory of train/CLASS/*.JPEG and val/CLASS/*.JPEG", metavar="DIR")
    output: Path = option("directory for checkpoints, tables and result.json", metavar="DIR")
    arch: str = option(", ".join(IMAGE_CLASSIFIERS), "resnet18", "-a", "--arch", metavar="NAME")
    preset: str = option("paper: as published; tiny: for a CPU", "paper", metavar="NAME")
    workers: int = option("loader processes per rank; 0: none", 4, "-j", "--workers", least=0)
    batch_size: int = option("images per step and rank", 256, "-b", "--batch-size", least=1)
    epochs: int = option("epochs to train", 3, least=1)
    iters: int = option("end each epoch after N steps; below 0: not before its end", -1, metavar="N")
    steps_per_run: int = option("exit after N steps, as if killed; below 0: never", -1, "--steps_per_run", metavar="N")
    lr: float = option("learning rate at a global batch of 256, scaled with it", 0.1, least=0)
    momentum: float = option("momentum of SGD", 0.9)
    wd: float = option("weight decay", 1e-4, "--wd", "--weight-decay", least=0)
    amp: bool = option("compute in half precision where it is safe", False, "--fp16", "--amp")
    sync_bn: bool = option("normalise over the batches of all ranks", False, "--sync_bn")
    barrier: bool = option("let all ranks wait for one another after each step")
    deterministic: bool = option("give the same bits in every run on the same device")
    noeval: bool = option("do not evaluate after epochs", False, "--noeval", "--no-eval")
    print_freq: int = option("print a line every N steps; 0: none", 10, "-p", "--print-freq", least=0, metavar="N")
    chk_policy: str = option(
        "auto: in two phases, as often as measured costs allow (default); sync: training waits; "
        "epoch: at ends of epochs only, training waits; none",
        None, type=str, metavar="NAME",
    )  # fmt: skip
    chk_freq: int = option(
        "steps between checkpoints; 0 or cached: as planned from measured or cached costs", "0", type=str, metavar="N"
    )
    chk_seconds: float = option("also take a checkpoint every S seconds; 0: never", 0.0, least=0, metavar="S")
    chk_prefix: Path | None = option("store of the checkpoints (default OUTPUT/checkpoints)", None, type=Path, metavar="DIR")
    max_overhead: float = option("per cent of time for checkpoints", 5.0, metavar="P")
    mtbf: float | None = option("mean seconds between failures, which set a least interval", None, type=float, metavar="S")
    dynamic: bool = option("correct the interval in the whole job, not only until the bound holds")
    in_flight: int = option("most unfinished checkpoints at once", 1, least=1, metavar="N")
    keep_all: bool = option("keep all checkpoints, not only the newest and those of ends of epochs")
    layout: str = option("ours: the store; theirs: the original's files", OURS, metavar="NAME")
    resume: bool = option(
        "auto: from the newest valid checkpoint", "never", type=str, nargs="?", const="auto", metavar="auto|never"
    )
    profile_cache: Path | None = option(
        "folder of measured costs (default ~/.cache/iotwin/checkfreq)", None, type=Path, metavar="DIR"
    )
    reprofile: bool = option("measure again, without cached costs")
    index_log: Path | None = option("append a line per batch: rank epoch step index index ...", None, type=Path, metavar="FILE")
    threads: int = option("CPU threads that compute; 0: torch's choice", 0, least=0)
    seed: int = option("seed of weights, order and augmentation", 1, least=0)
    variant: str

    @property
    def store(self) -> Path:
        """The directory of the checkpoints."""
        return self.chk_prefix or self.output / "checkpoints"

    @property
    def network(self) -> str:
        """The network's name in checkpoints. A checkpoint of another network is refused."""
        return f"{self.arch} {self.preset}"


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the options of CheckFreqConfig to `parser`."""
    add_options(parser, CheckFreqConfig)
    parser.add_argument("--chk_mode_baseline", action="store_true", help="as --chk-policy sync, or epoch without --chk-freq")
    add_variant_options(parser, (ORIGINAL, INSTRUMENTED))
    for flag in _INERT_FLAGS:
        parser.add_argument(flag, action="append_const", const=flag, dest="inert", help=argparse.SUPPRESS)
    for flag in _INERT_VALUES:
        parser.add_argument(flag, metavar="VALUE", action=_Inert, dest="inert", help=argparse.SUPPRESS)


class _Inert(argparse.Action):
    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.inert = [*(namespace.inert or []), option_string]


def parse_config(args: Namespace) -> CheckFreqConfig:
    """Return the job that the parsed options `args` describe. Raises UsageError if a value is impossible."""
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
            wrong = f"--{name.replace('_', '-')} '{values[name]}'"
            raise UsageError(f"{wrong} is unknown{nearest(values[name], list(known))}; choose {', '.join(known)}")
    config = CheckFreqConfig(**{**values, "resume": values["resume"] == "auto"})
    check_least(config)
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
