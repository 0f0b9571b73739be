"""``iotwin trace``: trace a command, a container, or what runs already."""

from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome
from tracing_tools.trace.errors import UsageError
from tracing_tools.trace.units import format_duration, parse_duration

if TYPE_CHECKING:
    from tracing_tools.targets.base import TraceTarget
    from tracing_tools.targets.container import ContainerOptions


class Record(Command):
    """Trace a command."""

    name = "trace"
    help = "record the storage activity of a command, a container or what runs already"
    epilog = "example: iotwin trace -o run.trace -- python train.py --epochs 3"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        """Add the output, what to trace, how, and the command."""
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="TRACE", help="directory to write the trace to")
        _add_targets(parser)
        parser.add_argument("--backend", default="auto", help="auto (default), libbpf, bcc, bpftrace, strace or preload")
        parser.add_argument("--duration", metavar="TIME", help="trace for so long, then finish; what is traced goes on")
        parser.add_argument(
            "--interval", default="1s", metavar="TIME", help="between samples of CPU, memory, disk and GPU (default 1s)"
        )
        parser.add_argument(
            "--detail", default="data,async", metavar="GROUPS",
            help="what to record, a list of: data, metadata, mmap, async, block, gpu; or all (default data,async)",
        )  # fmt: skip
        parser.add_argument(
            "--live",
            action="store_true",
            help="show rates, latencies, files and losses while it runs, not the job's output",
        )
        parser.add_argument("--workload", metavar="NAME", help="label to keep in the trace")
        parser.add_argument("--force", action="store_true", help="replace an earlier trace of that name")
        parser.add_argument("words", nargs=REMAINDER, metavar="-- COMMAND...", help="the command to run, after --")

    def run(self, args: Namespace) -> Outcome:
        """Trace; the exit status is the command's (128 + signal when it was killed by one)."""
        if args.jobs is not None:
            return _trace_jobs(args)
        from tracing_tools.capture import Options, trace_target
        from tracing_tools.trace.syscalls import parse_detail

        command = args.words[1:] if args.words[:1] == ["--"] else args.words
        make_target = _target(args, command)
        interval_ns = parse_duration(args.interval)
        if interval_ns < 1_000_000:
            raise UsageError(f"--interval {args.interval} is too short; take 1ms or more")
        options = Options(
            args.backend, interval_ns, args.workload, args.force, forward_output=not (args.quiet or args.json),
            detail=parse_detail(args.detail),
            duration_ns=None if args.duration is None else parse_duration(args.duration),
            live=args.live and not (args.quiet or args.json),
        )  # fmt: skip
        manifest = trace_target(make_target, args.output, options)
        # What ran before us and runs on has no status; that its trace has ended is no failure.
        status = manifest.exit_status if manifest.exit_status is not None else 0
        document = {
            "trace": str(args.output), "backend": manifest.backend, "events": manifest.events, "lost": manifest.lost_events,
            "counts": manifest.counts, "wall_s": manifest.cost.wall_ns / 1e9, "tracer_cpu_s": manifest.cost.tracer_cpu_ns / 1e9,
            "exit_status": status, "notes": manifest.notes,
        }  # fmt: skip
        return Outcome(document, status if status >= 0 else 128 - status)

    def show(self, document: dict[str, Any]) -> None:
        """Say in a line or two what was recorded."""
        import sys

        if "jobs" in document:
            for name, job in document["jobs"].items():
                print(f"{name}: {job.get('events', 'no')} events, exit status {job['exit_status']}", file=sys.stderr)
            return
        lost = f", {document['lost']} LOST" if document["lost"] else ", none lost"
        took = format_duration(document["wall_s"] * 1e9)
        print(f"{document['trace']}: {document['events']} events in {took} by {document['backend']}{lost}", file=sys.stderr)
        for note in document["notes"]:
            if not note.startswith("no GPU"):  # the normal state of most machines; `iotwin info` says it too
                print(f"  note: {note}", file=sys.stderr)


def _add_targets(parser: ArgumentParser) -> None:
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument("--image", metavar="IMAGE", help="run COMMAND (or the image's own) in a new container of this image")
    targets.add_argument("--container", metavar="NAME", help="a container that runs, or that COMMAND starts under this name")
    targets.add_argument("--pid", type=int, metavar="PID", help="a process that runs, and its descendants")
    targets.add_argument("--cgroup", metavar="PATH", help="all processes of a cgroup of the v2 hierarchy")
    targets.add_argument("--all", action="store_true", help="everything that runs; with COMMAND, while that runs")
    targets.add_argument("--attach", metavar="WHAT", help="what runs: a pid, a container's name or id, or a cgroup's path")
    targets.add_argument(
        "--jobs", type=Path, metavar="FILE", help="several jobs at once, from a YAML file; TRACE is their directory"
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="FROM:TO[:ro]",
        help="with --image: a directory for the container; repeatable",
    )
    parser.add_argument("--gpus", metavar="WHICH", help="with --image: all, or the ids of GPUs for the container, as 0,1")
    parser.add_argument(
        "--container-option", action="append", default=[], metavar="KEY=VALUE",
        help="with --image: a parameter of the docker SDK's containers.create, its value in YAML; repeatable",
    )  # fmt: skip


def _target(args: Namespace, command: list[str]) -> "Callable[[], TraceTarget]":
    """Return what makes the target that the arguments name; UsageError when they do not go together."""
    from tracing_tools.targets.command import CommandTarget
    from tracing_tools.targets.container import ContainerTarget, ImageTarget, LaunchedContainer
    from tracing_tools.targets.running import CgroupTarget, MachineDuringCommand, MachineTarget, ProcessTarget

    _interpret_attach(args)
    if args.image is None and (args.volume or args.gpus or args.container_option):
        raise UsageError("--volume, --gpus and --container-option belong to --image")
    if command and (args.pid is not None or args.cgroup or args.attach):
        raise UsageError("what runs already needs no command; leave out what stands after --")
    if args.image is not None:
        options = _container_options(args)
        return lambda: ImageTarget(args.image, command, options)
    if args.container is not None:
        return lambda: LaunchedContainer(args.container, command) if command else ContainerTarget(args.container)
    if args.pid is not None:
        return lambda: ProcessTarget(args.pid)
    if args.cgroup is not None:
        return lambda: CgroupTarget(args.cgroup)
    if args.all:
        return lambda: MachineDuringCommand(command) if command else MachineTarget()
    if not command:
        raise UsageError("no command given; write it after --, for example: iotwin trace -o run.trace -- python train.py")
    return lambda: CommandTarget(command)


def _trace_jobs(args: Namespace) -> Outcome:
    """Trace the jobs of a file; the exit status is that of the first that failed."""
    from iotwin.jobs import read_jobs, trace_jobs

    if args.words:
        raise UsageError("--jobs names the commands; leave out what stands after the options")
    common = ["--backend", args.backend, "--interval", args.interval, "--detail", args.detail]
    common += ["--duration", args.duration] if args.duration else []
    common += ["--force"] if args.force else []
    documents = trace_jobs(read_jobs(args.jobs), args.output, common)
    status = next((job["exit_status"] for job in documents.values() if job["exit_status"]), 0)
    return Outcome({"directory": str(args.output), "jobs": documents}, status if status >= 0 else 128 - status)


def _interpret_attach(args: Namespace) -> None:
    """Turn --attach into the option that it stands for."""
    what = args.attach
    if what is None:
        return
    if what.isdecimal():
        args.pid = int(what)
    elif "/" in what:
        args.cgroup = what
    else:
        args.container = what


def _container_options(args: Namespace) -> "ContainerOptions":
    import yaml

    from tracing_tools.targets.container import ContainerOptions

    parameters: dict[str, Any] = {}
    for text in args.container_option:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--container-option {text} has no value; write KEY=VALUE, for example shm_size=8g")
        try:
            parameters[key.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"--container-option {text}: the value is not YAML") from None
    if args.volume:
        parameters["volumes"] = [_volume(text) for text in args.volume]
    return ContainerOptions(parameters, args.gpus)


def _volume(text: str) -> str:
    """Return a volume as the engine wants it: a directory by its absolute path; named volumes as they are."""
    source, colon, rest = text.partition(":")
    if not colon or not rest:
        raise UsageError(f"--volume {text} is not FROM:TO or FROM:TO:ro")
    if "/" not in source and not Path(source).is_dir():
        return text
    if not Path(source).is_dir():
        raise UsageError(f"--volume {text}: there is no directory {source}; make it first")
    return f"{Path(source).resolve()}:{rest}"
