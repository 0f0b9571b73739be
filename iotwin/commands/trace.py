"""``iotwin trace``: record a command, a container or running processes."""

import shlex
import signal
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome
from iotwin.common.errors import UnfinishedTraceError, UsageError
from iotwin.common.ranks import NodeTask, node_task
from iotwin.common.units import counted, format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from iotwin.tracing_tools.recorder.end_conditions import Until
    from iotwin.tracing_tools.recorder.record_target import TraceOptions
    from iotwin.tracing_tools.targets.container import ContainerOptions
    from iotwin.tracing_tools.targets.target import TraceTarget

_LEAST_RING_BYTES = 64 << 20


class TraceCommand(Command):
    name = "trace"
    help = "record the storage activity of a command, a container or running processes"
    epilog = "example: iotwin trace -o run.trace -- python train.py --epochs 3"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            required=True,
            metavar="TRACE",
            help="directory to write the trace to; under srun or mpirun of several tasks, directory of traces",
        )
        _add_targets(parser)
        parser.add_argument("--backend", default="auto", help="auto (default), libbpf, bcc, bpftrace, strace or preload")
        parser.add_argument("--duration", metavar="TIME", help="end the trace after this time; the traced processes continue")
        parser.add_argument(
            "--grace", metavar="TIME", help="kill a job that has not ended this long after Ctrl-C (default: wait for it)"
        )
        parser.add_argument(
            "--interval", default="1s", metavar="TIME", help="time between samples of CPU, memory, disk and GPU (default 1s)"
        )
        parser.add_argument(
            "--detail",
            default="data,async",
            metavar="GROUPS",
            help="what to record: data, metadata, mmap, async, block, gpu (joined by commas), or all (default data,async)",
        )
        parser.add_argument(
            "--phases",
            choices=("auto", "logged", "none"),
            default="logged",
            help="logged: the phases that the job logs (default); auto: label the loops of a Python script that logs none; none",
        )
        parser.add_argument(
            "--live",
            action="store_true",
            help="while the job runs, show its rates, latencies, files and lost events instead of its output",
        )
        parser.add_argument(
            "--metrics",
            metavar="WHERE",
            help="publish OpenMetrics while the job runs, on a PORT of this machine, at HOST:PORT, or in a FILE",
        )
        parser.add_argument(
            "--ring", metavar="SIZE", help="keep only the newest events, in SIZE of records, for a recording without end"
        )
        parser.add_argument(
            "--until",
            metavar="CONDITION",
            help="end the trace at 'stall>0.3 for 10s', 'signal' (SIGUSR1) or 'failure' of the command; the job continues",
        )
        parser.add_argument("--workload", metavar="NAME", help="label stored in the trace")
        parser.add_argument("--force", action="store_true", help="replace an earlier trace of that name")
        parser.add_argument("words", nargs=REMAINDER, metavar="-- COMMAND...", help="the command to run, after --")

    def run(self, args: Namespace) -> Outcome:
        _refuse_removed_directory(args.output)
        if args.image is None and (args.volume or args.gpus or args.container_option):
            raise UsageError("--volume, --gpus and --container-option belong to --image, or to a job in the file of --jobs")
        options = _options(args)
        if args.jobs is not None:
            return _trace_jobs(args, options)
        from iotwin.tracing_tools.recorder.node_launch import trace_of, trace_task
        from iotwin.tracing_tools.recorder.record_target import trace_target

        command = args.words[1:] if args.words[:1] == ["--"] else args.words
        if args.all or args.container or args.image:
            _accept_interrupts()
        make_target = _labelled(_target(args, command), args, command)
        task = _task_of(args)
        try:
            if task is None:
                manifest = trace_target(make_target, args.output, options)
            else:
                traced = trace_task(command, task, args.output, options)
                args.output = trace_of(args.output, task)
                if isinstance(traced, int):
                    document = {"trace": str(args.output), "rank": task.rank, "exit_status": traced}
                    return Outcome(document, _shell_status(traced))
                manifest = traced
        except UnfinishedTraceError as error:
            error.exit_status = _shell_status(error.job_status or 1)  # if the job failed too, its exit status takes precedence
            raise
        # If the traced process was attached to, it may still run and has no exit status; that is no failure.
        status = manifest.exit_status if manifest.exit_status is not None else 0
        document = {
            "trace": str(args.output),
            "backend": manifest.backend,
            "events": manifest.events,
            "lost": manifest.lost_events,
            "counts": manifest.counts,
            "wall_s": manifest.cost.wall_ns / 1e9,
            "tracer_cpu_s": manifest.cost.tracer_cpu_ns / 1e9,
            "exit_status": status,
            "notes": [*manifest.notes, *_mapped_data_notes(args.output)],
        }
        if status and args.quiet:
            print(f"iotwin trace: {_failed(status)}", file=sys.stderr)
        return Outcome(document, _shell_status(status))

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.progress import note

        if "rank" in document:
            return  # the tracer of the node shows the trace
        if "jobs" in document:
            for name, job in document["jobs"].items():
                note(f"{name}: {counted(job.get('events', 0), 'event')}, exit status {job['exit_status']}")
            return
        lost = f", {document['lost']} LOST" if document["lost"] else ", none lost"
        took = format_duration(document["wall_s"] * 1e9)
        note(f"{document['trace']}: {counted(document['events'], 'event')} in {took} by {document['backend']}{lost}")
        if document["exit_status"]:
            note(f"  {_failed(document['exit_status'])}")
        for text in _merged(document["notes"]):
            note(f"  note: {text}")
        if not document["exit_status"]:
            if verdict := _verdict(Path(document["trace"])):
                note(f"  {verdict}")
            note(f"  next: iotwin report {shlex.quote(document['trace'])} -o report.html, or iotwin fit to build its twin")


def _options(args: Namespace) -> "TraceOptions":
    """Return the options of the recording. Raises UsageError if a value is wrong."""
    from iotwin.trace_store.syscalls import parse_detail
    from iotwin.tracing_tools.backends.choose_backend import check_name
    from iotwin.tracing_tools.recorder.record_target import TraceOptions

    check_name(args.backend)
    interval_ns = parse_duration(args.interval)
    if interval_ns < 1_000_000:
        raise UsageError(f"--interval {args.interval} is too short; take 1ms or more")
    return TraceOptions(
        args.backend,
        interval_ns,
        args.workload,
        args.force,
        forward_output=not args.json,
        detail=parse_detail(args.detail),
        duration_ns=None if args.duration is None else parse_duration(args.duration),
        live=args.live and not (args.quiet or args.json),
        grace_ns=None if args.grace is None else parse_duration(args.grace),
        ignore_phases=args.phases == "none",
        ring_bytes=_ring_bytes(args.ring),
        metrics=args.metrics,
        until=_until(args.until),
    )


def _ring_bytes(text: str | None) -> int | None:
    size_bytes = None if text is None else parse_size(text)
    if size_bytes is not None and size_bytes < _LEAST_RING_BYTES:
        raise UsageError(f"--ring {text} is less than the kernel's buffers hold; take {format_size(_LEAST_RING_BYTES)} or more")
    return size_bytes


def _until(text: str | None) -> "Until | None":
    from iotwin.tracing_tools.recorder.end_conditions import END_SIGNAL, parse_until

    until = None if text is None else parse_until(text)
    if until is not None and until.kind == "signal":
        # The signal must not kill iotwin while it finishes the trace, or while another task traces. The job inherits no handler.
        signal.signal(END_SIGNAL, lambda number, frame: None)
    return until


def _verdict(output: Path) -> str:
    """Return a sentence on what limits the traced job; an empty string if it reads no data set or the trace is very large."""
    from iotwin.trace_store.figures.unrecorded_maps import has_data_set

    if not has_data_set(output):
        return ""
    from iotwin.loops.answers.bottleneck import quick_verdict
    from iotwin.trace_store.reader import Trace

    found = quick_verdict(Trace(output))
    return found["sentence"] if found else ""


def _merged(notes: list[str]) -> list[str]:
    """Return at most two notes: one on the backends that do not work here, and one with all others.

    The note on missing GPU samples is left out, since most machines have no GPU; `iotwin info` shows all notes.
    """
    from iotwin.tracing_tools.backends.choose_backend import BACKEND_NAMES

    refused = {name: text for text in notes for name in BACKEND_NAMES if text.startswith(f"no {name}: ")}
    others = [text for text in notes if text not in refused.values() and not text.startswith("no GPU")]
    first, *further = refused or [""]
    backends = [refused[first] + (f" (nor {', '.join(further)}: see iotwin doctor)" if further else "")] if first else []
    return backends + (["; ".join(others)] if others else [])


def _refuse_removed_directory(output: Path) -> None:
    try:
        output.absolute()
    except FileNotFoundError:
        message = f"{output}: the current directory was removed; change to one that exists, or give an absolute path"
        raise UsageError(message) from None


def _mapped_data_notes(output: Path) -> list[str]:
    """Return a note if the job reads its data set through memory maps, and page faults were not recorded; else an empty list."""
    from iotwin.trace_store.figures.unrecorded_maps import has_data_set, mapped_data_note

    if not has_data_set(output):
        return []
    from iotwin.trace_store.reader import Trace

    found = mapped_data_note(Trace(output))
    return [found] if found else []


def _failed(status: int) -> str:
    return f"the traced command ended with status {_shell_status(status)}"


def _shell_status(status: int) -> int:
    """Return an exit status as a shell reports it: 128 + N for a command that signal N killed, whose `status` is -N."""
    return status if status >= 0 else 128 - status


def _accept_interrupts() -> None:
    """Accept Ctrl-C, which ends the trace, even if the caller made this process ignore it, as scripts do with `&`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _add_targets(parser: ArgumentParser) -> None:
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument("--image", metavar="IMAGE", help="run COMMAND (or the image's own) in a new container of this image")
    targets.add_argument("--container", metavar="NAME", help="a running container, or one that COMMAND starts under this name")
    targets.add_argument("--pid", type=int, metavar="PID", help="record a running process and its descendants")
    targets.add_argument("--cgroup", metavar="PATH", help="record all processes of this cgroup (v2)")
    targets.add_argument("--all", action="store_true", help="record all processes of the machine; with COMMAND, until it ends")
    targets.add_argument(
        "--attach", metavar="WHAT", help="record what runs already: give a pid, a container's name or id, or a cgroup's path"
    )
    targets.add_argument(
        "--jobs",
        type=Path,
        metavar="FILE",
        help="trace the jobs of this YAML file at once; TRACE is the directory of their traces",
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="FROM:TO[:ro]",
        help="with --image: mount this directory in the container; repeatable",
    )
    parser.add_argument("--gpus", metavar="WHICH", help="with --image: all, or the ids of GPUs for the container, as 0,1")
    parser.add_argument(
        "--container-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with --image: a parameter of the docker SDK's containers.create, its value in YAML; repeatable",
    )


def _target(args: Namespace, command: list[str]) -> "Callable[[], TraceTarget]":
    """Return the function that makes the target which the options name. Raises UsageError if options exclude each other."""
    from iotwin.tracing_tools.targets.command import CommandTarget
    from iotwin.tracing_tools.targets.container import ContainerTarget, ImageTarget
    from iotwin.tracing_tools.targets.launched_container import LaunchedContainer
    from iotwin.tracing_tools.targets.running_targets import CgroupTarget, MachineDuringCommand, MachineTarget, ProcessTarget

    _interpret_attach(args)
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


def _task_of(args: Namespace) -> NodeTask | None:
    """Return this process as one of several tasks of a launcher, if it is to trace a command.

    Raises UsageError if an option is for one process only.
    """
    if args.all or args.container or args.image or args.cgroup or args.pid is not None:
        return None
    task = node_task()
    if task is not None and args.live:
        raise UsageError("--live shows the activity of one tracer; leave it out under srun, mpirun or torchrun")
    if task is not None and args.phases == "auto":
        raise UsageError("--phases auto labels a command that no launcher started; leave it out under srun, mpirun or torchrun")
    return task


def _labelled(make_target: "Callable[[], TraceTarget]", args: Namespace, command: list[str]) -> "Callable[[], TraceTarget]":
    """Return the function that makes the target: with labelled loops if `--phases auto` is set, else `make_target`."""
    if args.phases != "auto":
        return make_target
    from iotwin.loops.labelled_target import LabelledTarget, not_labelled

    starts_elsewhere = args.image or args.container or args.all or args.pid is not None or args.cgroup
    return (lambda: not_labelled(make_target())) if starts_elsewhere else lambda: LabelledTarget(command)


def _trace_jobs(args: Namespace, options: "TraceOptions") -> Outcome:
    """Trace the jobs of a YAML file. The exit status is the status of the first job that failed, else 0."""
    from iotwin.loops.traced_jobs import read_jobs, trace_jobs

    if args.words:
        raise UsageError("--jobs names the commands; leave out what stands after the options")
    if args.live or args.metrics is not None:
        raise UsageError("--live and --metrics show one job; leave them out with --jobs")
    common = [f"--{name}" for name in ("force", "debug") if getattr(args, name)]
    for name in ("backend", "interval", "detail", "phases", "duration", "grace", "ring", "until", "workload"):
        if (value := getattr(args, name)) is not None:
            common.append(f"--{name}={value}")
    is_signal_awaited = options.until is not None and options.until.kind == "signal"
    documents = trace_jobs(read_jobs(args.jobs), args.output, common, is_signal_awaited)
    status = next((job["exit_status"] for job in documents.values() if job["exit_status"]), 0)
    return Outcome({"directory": str(args.output), "jobs": documents}, _shell_status(status))


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
    from iotwin.tracing_tools.targets.container import ContainerOptions
    from iotwin.workload_yaml.yaml12 import parse

    parameters: dict[str, Any] = {}
    for text in args.container_option:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--container-option {text} has no value; write KEY=VALUE, for example shm_size=8g")
        parameters[key.replace("-", "_")] = parse(value, f"--container-option {text}")
    if args.volume:
        parameters["volumes"] = [_volume(text) for text in args.volume]
    return ContainerOptions(parameters, args.gpus)


def _volume(text: str) -> str:
    """Return a volume as the engine requires it: a directory by its absolute path, a named volume unchanged."""
    source, colon, rest = text.partition(":")
    if not colon or not rest:
        raise UsageError(f"--volume {text} is not FROM:TO or FROM:TO:ro")
    if "/" not in source and not Path(source).is_dir():
        return text
    if not Path(source).is_dir():
        raise UsageError(f"--volume {text}: there is no directory {source}; make it first")
    return f"{Path(source).resolve()}:{rest}"
