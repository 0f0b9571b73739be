"""The training program's command line: the 31 options of PipeDream's main_with_runtime.py, and a few of iotwin's."""

import os
import re
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from iotwin.common.errors import UsageError, nearest
from iotwin.common.units import counted
from iotwin.workloads.common.options import add_options, check_least, option
from iotwin.workloads.common.variant import INSTRUMENTED, ORIGINAL, add_variant_options, check_variant
from iotwin.workloads.models import IMAGE_CLASSIFIERS, MODELS, PRESETS
from iotwin.workloads.pipedream.plan.plan_file import ConvertedModel, read_converted, read_plan
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage

LR_POLICIES = ("step", "polynomial", "exponential_decay")
BACKENDS = ("gloo", "nccl")
_PACKAGE = re.compile(r"models\.(?P<arch>[^.]+)\.gpus=.*")  # PipeDream's name of a partitioned model


@dataclass(frozen=True, kw_only=True)
class PipeDreamConfig:
    """The options of one rank of a pipeline. Minibatches are those of the whole pipeline."""

    module: str | None = option(
        f"model to train: {', '.join(MODELS)}; of models.ARCH.gpus=N, ARCH; or a folder that convert --preset wrote",
        None,
        "-m",
        "--module",
        type=str,
        metavar="NAME",
    )
    preset: str | None = option(
        "paper: as published; tiny: for a CPU (default: paper, if the model has a published size)", None, type=str, metavar="NAME"
    )
    data_dir: Path | None = option(
        "directory of train/CLASS/*.JPEG and val/CLASS/*.JPEG, which the ranks of stage 0 read",
        None, "--data_dir", "--data-dir", type=Path, metavar="DIR",
    )  # fmt: skip
    synthetic_data: bool = option(
        "train on random data, an epoch of as many samples as ImageNet has", False, "-s", "--synthetic_data", "--synthetic-data"
    )
    config_path: Path | None = option(
        "conf.json or plan.json with the ranks of each stage; without it, one process trains the whole model",
        None, "--config_path", "--config-path", type=Path, metavar="FILE",
    )  # fmt: skip
    rank: list[int] | None = option(
        "index of this process, from 0 (default: RANK); if several are given, this process starts one for each",
        None, nargs="+", type=int, metavar="R",
    )  # fmt: skip
    local_rank: list[int] | None = option(
        "index among the ranks of this machine; of no effect, as ranks compute on CPUs",
        None, "--local_rank", "--local-rank", nargs="+", type=int, metavar="R",
    )  # fmt: skip
    master_addr: str | None = option(
        "machine of rank 0 (default: MASTER_ADDR)", None, "--master_addr", "--master-addr", type=str, metavar="HOST"
    )
    distributed_backend: str = option("gloo", "gloo", "--distributed_backend", "--distributed-backend", metavar="NAME")
    num_ranks_in_server: int = option(
        "ranks of this machine, which share its CPUs", 1, "--num_ranks_in_server", "--num-ranks-in-server", least=1, metavar="N"
    )
    workers: int = option("loader processes per rank of stage 0; 0: none", 4, "-j", "--workers", least=0, metavar="N")
    epochs: int = option("epochs to train", 90, least=1, metavar="N")
    start_epoch: int = option("first epoch, from 0", 0, "--start-epoch", "--start_epoch", least=0, metavar="E")
    batch_size: int = option("samples per minibatch", 256, "-b", "--batch-size", "--batch_size", least=1, metavar="N")
    eval_batch_size: int = option(
        "samples per minibatch of evaluations", 100, "--eval-batch-size", "--eval_batch_size", least=1, metavar="N"
    )
    lr: float = option("learning rate of stage 0; others have it times their replicas / those of stage 0", 0.1, least=0)
    lr_policy: str = option(", ".join(LR_POLICIES), "step", "--lr_policy", "--lr-policy", metavar="NAME")
    lr_warmup: bool = option("raise the learning rate from 0 over the first 5 epochs", False, "--lr_warmup", "--lr-warmup")
    momentum: float = option("momentum of SGD", 0.9, least=0)
    weight_decay: float = option("weight decay", 1e-4, "--weight-decay", "--weight_decay", "--wd", least=0)
    print_freq: int = option("print a line every N minibatches of a rank", 10, "-p", "--print-freq", "--print_freq", least=1)
    verbose_frequency: int = option(
        "print the bytes sent and received, and the weight versions, at every Nth minibatch of a rank; 0: never",
        0, "-v", "--verbose_frequency", "--verbose-frequency", least=0, metavar="N",
    )  # fmt: skip
    fp16: bool = option("refused: CPUs compute in single precision")
    loss_scale: float = option("refused without --fp16", 1.0, "--loss_scale", "--loss-scale")
    no_input_pipelining: bool = option(
        "one minibatch at a time: plain model parallelism", False, "--no_input_pipelining", "--no-input-pipelining"
    )
    recompute: bool = option("repeat the forward pass in the backward pass, so that activations need no memory")
    macrobatch: bool = option("two weight versions, and one update for as many minibatches as fill the pipeline (2BW)")
    vertical_sync: bool = option("all stages use the version that stage 0 used")
    forward_only: bool = option("only evaluate, once per epoch", False, "--forward_only", "--forward-only")
    num_minibatches: int | None = option(
        "end each epoch and evaluation after N minibatches",
        None, "--num_minibatches", "--num-minibatches", type=int, metavar="N",
    )  # fmt: skip
    checkpoint_dir: Path | None = option(
        "write checkpoints to the store DIR/checkpoint", None, "--checkpoint_dir", "--checkpoint-dir", type=Path, metavar="DIR"
    )
    checkpoint_dir_not_nfs: bool = option(
        "refused: one manifest lists the files of all stages", False, "--checkpoint_dir_not_nfs", "--checkpoint-dir-not-nfs"
    )
    checkpoint_steps: int = option(
        "also drain the pipeline and write a checkpoint after every K minibatches of an epoch; 0: at its end only",
        0, least=0, metavar="K",
    )  # fmt: skip
    resume: Path | None = option("resume from this checkpoint or store, DIR/checkpoint", None, type=Path, metavar="PREFIX")
    seed: int = option("seed of weights, order, crops and dropout", 1, least=0)
    variant: str = ORIGINAL

    @cached_property
    def converted(self) -> ConvertedModel | None:
        """The model in the folder that --module names, None if it names no folder with weights."""
        found = read_converted(Path(self.module)) if self.module and self.module not in MODELS else None
        return found if found and found.preset else None

    @property
    def classes(self) -> int | None:
        """The number of classes of the converted model, None if the images or the model determine it."""
        return self.converted.classes if self.converted else None

    @property
    def arch(self) -> str:
        """The name of the model in the zoo."""
        if self.converted:
            return self.converted.arch
        match = _PACKAGE.fullmatch(self.module or "")
        return match["arch"] if match else self.module or ""

    @property
    def size(self) -> str:
        """The preset of the model."""
        if self.converted and self.converted.preset:
            return self.converted.preset
        return self.preset or ("paper" if self.arch in (*IMAGE_CLASSIFIERS, "gnmt") else "tiny")


def prepare_parser(parser: ArgumentParser) -> None:
    """Add the options of PipeDreamConfig to `parser`."""
    add_options(parser, PipeDreamConfig)
    add_variant_options(parser, (ORIGINAL, INSTRUMENTED))


def parse_config(args: Namespace) -> tuple[PipeDreamConfig, PipelinePlan, list[int]]:
    """Return (options, plan, stage of each part of the model). Raises UsageError if a value is impossible or refused.

    A conf.json lists the stage of each part (module). For any other plan, each stage is one part: [0, 1, ...].
    """
    values = dict(vars(args))
    check_variant(args.variant, values.pop("sleep"), values.pop("variants"))
    config = PipeDreamConfig(**{each.name: values[each.name] for each in fields(PipeDreamConfig)})
    _check_names(config)
    check_least(config)
    _refuse(config)
    plan, modules = _plan(config)
    return config, plan, modules


def _check_names(config: PipeDreamConfig) -> None:
    if not config.module:
        raise UsageError(f"name the model by --module: {', '.join(MODELS)}")
    for option_name, value, known in (
        ("--module", config.arch, tuple(MODELS)),
        ("--preset", config.size, PRESETS),
        ("--lr_policy", config.lr_policy, LR_POLICIES),
        ("--distributed_backend", config.distributed_backend, BACKENDS),
    ):
        if value not in known:
            raise UsageError(f"{option_name} '{value}' is unknown{nearest(value, list(known))}; choose {', '.join(known)}")


def _refuse(config: PipeDreamConfig) -> None:
    """Raise UsageError, with the reason, if an option cannot work."""
    real = config.arch in IMAGE_CLASSIFIERS
    for refused, reason in (
        (config.fp16, "--fp16: ranks compute on CPUs, which have no fast half precision; leave it out"),
        (config.loss_scale != 1, "--loss_scale: only half precision (--fp16) needs a scaled loss; leave it out"),
        (config.distributed_backend == "nccl", "--distributed_backend nccl connects GPUs, and ranks compute on CPUs; use gloo"),
        (
            config.checkpoint_dir_not_nfs,
            "--checkpoint_dir_not_nfs: one manifest lists the files of all stages; give all ranks the same --checkpoint_dir",
        ),
        (
            bool(config.converted and config.preset not in (None, config.size)),
            f"--preset {config.preset}: {config.module} has weights of the preset {config.size}; leave --preset out",
        ),
        (config.macrobatch and config.no_input_pipelining, "--macrobatch and --no_input_pipelining exclude one another"),
        (config.data_dir is None and not config.synthetic_data, "name the images by --data_dir, or use --synthetic_data"),
        (
            not real and not config.synthetic_data,
            f"--module {config.arch} reads no images; use --synthetic_data, or one of {', '.join(IMAGE_CLASSIFIERS)}",
        ),
        (config.num_minibatches is not None and config.num_minibatches < 1, "--num_minibatches must be at least 1"),
        (config.start_epoch >= config.epochs, f"--start-epoch {config.start_epoch} must be below --epochs {config.epochs}"),
        (config.checkpoint_steps and config.checkpoint_dir is None, "--checkpoint-steps requires --checkpoint_dir"),
    ):
        if refused:
            raise UsageError(reason)


def _plan(config: PipeDreamConfig) -> tuple[PipelinePlan, list[int]]:
    alone = PipelinePlan((Stage(0, (0,), 0.0, 0.0),))
    plan = alone if config.config_path is None else read_plan(config.config_path)
    modules = plan.origin.get("modules") or list(range(len(plan.stages)))
    if config.macrobatch or config.no_input_pipelining:
        plan = replace(plan, schedule="2bw" if config.macrobatch else "none")
    for rank in config.rank or ():
        if not 0 <= rank < plan.ranks:
            conf = config.config_path or "a run without a conf"
            raise UsageError(f"--rank {rank} is none of the {counted(plan.ranks, 'rank')} of {conf}")
    if plan.ranks > 1 and config.master_addr is None and "MASTER_ADDR" not in os.environ:
        raise UsageError(f"{plan.ranks} ranks need --master_addr, the machine of rank 0; 127.0.0.1 if it is this one")
    return plan, modules
