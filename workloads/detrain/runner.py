"""Runs a script as Python does, with its loops instrumented in memory."""

import ast
import hashlib
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iotwin.common.errors import IotwinError, UsageError, in_one_line
from iotwin.common.files import make_folder, write_json
from iotwin.common.progress import note
from iotwin.common.untrusted_files import read_foreign
from iotwin.workloads.detrain.instrumentation import (
    KERAS_FIT,
    MOST_SOURCE_BYTES,
    SURE,
    Instrumentation,
    changed_sources,
    read_instrumentation,
)
from iotwin.workloads.detrain.options import check_options, policy_of, saves
from iotwin.workloads.detrain.rewrite import (
    MARKS,
    batches_begin_without_gradients,
    dead_at_batches,
    instrumented,
    lines_run_again,
)
from iotwin.workloads.detrain.saving.script_store import ScriptStore
from iotwin.workloads.detrain.script_program import ScriptProgram
from iotwin.workloads.detrain.script_ranks import ScriptRanks, path_of_rank
from iotwin.workloads.policies.cadence import Policy
from iotwin.workloads.policies.checkpoint_frequency import MeasuredPolicy

if TYPE_CHECKING:
    from iotwin.workloads.detrain.randomness.determinism import AppliedProfile
    from iotwin.workloads.detrain.resumption import Resumption
    from iotwin.workloads.detrain.session import Session
    from iotwin.workloads.detrain.steps_log import StepsLog

RUN = "run.json"


def run_script(
    options: Namespace,
    make_session: "Callable[..., Session] | None" = None,
    make_log: "Callable[[Path], StepsLog] | None" = None,
    keys_items: bool = True,
) -> None:
    """Run the script. Exceptions of the script, even SystemExit, are passed on.

    `make_session`, `make_log`: called to make the session and the steps log, by default their classes. `keys_items`: whether the
    random draws of data sets are keyed by item, unless determinism is off.

    Raises IotwinError if the script has no loop or does not fit the checkpoint, and UsageError if options contradict one another.
    """
    from iotwin.workloads.detrain.keras_fit import KerasFit

    check_options(options)
    found = instrumentation_of(options)
    ranks = ScriptRanks.joined()
    if ranks.world_size > 1 and found.kind == "FRAMEWORK":
        raise IotwinError(f"{options.script}: trains by Keras's fit, which iotwin detrain runs as one process; start one rank")
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    with ranks, _session(options, found, ranks, make_session, make_log, keys_items) as session:
        fit = KerasFit(session, options.script) if found.wrapper == KERAS_FIT else None
        files = {line.file for line in (found.epoch, found.batch, found.data) if line is not None}
        ScriptProgram(files, partial(instrumented, found=found), session).execute(options.script.resolve())
        if fit is not None:
            fit.finish()


def instrumentation_of(options: Namespace) -> Instrumentation:
    """Return the script's loops: from --inst if its files are unchanged, else by analysis; without lines if the script has marks.

    Raises IotwinError if the loops are uncertain, or belong to a framework other than Keras.
    """
    from iotwin.workloads.detrain.discover import analyse, discover

    if options.inst is None:
        found = analyse(options.script) if is_marked(options.script) else discover(options.script)
    else:
        with in_one_line(f"--inst {options.inst}", "name a file that iotwin detrain discover wrote"):
            found = read_instrumentation(options.inst)
        if changed := changed_sources(found):
            note(f"{changed[0]} has changed since {options.inst} was written; the loops are searched again")
            found = discover(options.script)
    if is_marked(options.script):
        return msgspec.structs.replace(found, kind="NONE", epoch=None, batch=None, data=None)
    if found.kind == "FRAMEWORK" and found.wrapper != KERAS_FIT:
        at = f" at line {found.update.line}" if found.update else ""
        raise IotwinError(
            f"{options.script}: trains by a framework{at}, whose loops are not the script's; use the framework's resume"
        )
    if found.confidence < SURE and not options.force:
        why = found.reasons[-1] if found.reasons else "several lines may be the loops"
        raise IotwinError(
            f"{options.script}: it is unsure which lines are its loops ({why}); see iotwin detrain discover, or give --force"
        )
    return found


def is_marked(script: Path) -> bool:
    """Return whether a script imports marks for its loops (see markers.py)."""
    try:
        tree = ast.parse(read_foreign(script, MOST_SOURCE_BYTES))
    except (SyntaxError, ValueError):
        return False
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "iotwin.workloads.detrain")
    return any(alias.name in MARKS for node in imports for alias in node.names)


@contextmanager
def _session(
    options: Namespace,
    found: Instrumentation,
    ranks: ScriptRanks,
    make_session: "Callable[..., Session] | None",
    make_log: "Callable[[Path], StepsLog] | None",
    keys_items: bool,
) -> "Iterator[Session]":
    """Run the `with` block with a session, and write its run.json at the end."""
    from iotwin.workloads.common.torch_ranks import keep_groups
    from iotwin.workloads.detrain import markers
    from iotwin.workloads.detrain.loaders import LoaderTracker
    from iotwin.workloads.detrain.phases.run_phases import LOAD, RunPhases
    from iotwin.workloads.detrain.randomness.determinism import apply
    from iotwin.workloads.detrain.randomness.machine_manifest import manifest
    from iotwin.workloads.detrain.session import Session
    from iotwin.workloads.detrain.steps_log import StepsLog

    profile = apply(options.determinism, options.seed, options.fix_entropy)
    keep_groups()
    log = (make_log or StepsLog)(path_of_rank(options.steps_log.absolute(), ranks.rank)) if options.steps_log else None
    item_seed = options.seed if keys_items and options.determinism != "off" else None
    loaders = LoaderTracker(log.indices.append if log else None, options.workers, item_seed)
    policy = policy_of(options, time.monotonic())
    session = (make_session or Session)(
        policy,
        log,
        loaders,
        lambda: manifest(options.determinism, options.seed),
        gradients=not batches_begin_without_gradients(found),
        dead=dead_at_batches(found),
        drop=frozenset(options.drop),
    )
    session.ranks, session.phases = ranks, RunPhases(options.log_phases, ranks.rank)
    if options.output is None:
        yield session
        session.finish()
        return
    output = options.output.absolute()
    make_folder(output)
    store = ScriptStore(output, {"script": options.script.name}, options.keep, sources_sha256(found), ranks)
    with store.store:
        begin_ns = time.monotonic_ns()
        resumed = _resumed(store, options)
        if resumed is not None:
            session.phases.part(LOAD, begin_ns)
        session.store = store if saves(options) else None
        session.resume, session.certifies = (None, resumed) if options.replay == "full" else (resumed, None)
        if found.batch is None and found.kind != "FRAMEWORK":
            markers.use(session)
        if session.resume is not None and session.resume.replay == "replay-data":
            loaders.replays(session.resume.state["passes"], session.resume.state["last_batches"])
        handler = signal.signal(signal.SIGUSR1, lambda *_: policy.ask()) if saves(options) else None
        try:
            yield session
            session.finish()
        finally:
            if handler is not None:
                signal.signal(signal.SIGUSR1, handler)
            if ranks.rank == 0:
                write_json(output / RUN, _document(options, found, session, resumed, profile))


def _resumed(store: ScriptStore, options: Namespace) -> "Resumption | None":
    """Return the checkpoint to resume from, None for a new run."""
    from iotwin.workloads.detrain.resumption import REPLAY_DATA, RESTORE, Resumption

    found = store.find(options.resume)
    if found is None:
        return None
    point, state = store.read(found)
    saved = state["manifest"]
    if (saved["determinism"], saved["seed"]) != (options.determinism, options.seed):
        wanted = f"--determinism {saved['determinism']} --seed {saved['seed']}"
        raise UsageError(f"{found.path} was saved with {wanted}; resume with the same, or begin anew with --resume never")
    replay = options.replay
    if replay == RESTORE and state["replays_only"]:
        note(f"{state['replays_only'][0]} cannot be restored; so earlier batches are read again, as with --replay replay-data")
        replay = REPLAY_DATA
    return Resumption(found.name, point, state, replay)


def _document(
    options: Namespace, found: Instrumentation, session: "Session", resumed: "Resumption | None", profile: "AppliedProfile"
) -> dict[str, Any]:
    """Return the content of run.json."""
    steps = session.progress.step - (session.resumed.step if session.resumed else 0)
    return {
        "script": str(options.script),
        "resumed_from": resumed.name if resumed else None,
        "replay": resumed.replay if resumed else None,
        "replayed_side_effects": msgspec.to_builtins(lines_run_again(found)) if session.resumed else [],
        "differs_from_saved": session.differs_from_saved,
        "epochs": session.progress.epoch + 1,
        "steps": session.progress.step,
        "ranks": session.ranks.world_size,
        "checkpoints": session.saved,
        "interval": _interval(session.policy),
        "nondeterministic_ops": profile.nondeterministic_ops(),
        "entropy": profile.entropy(),
        "manifest": session.manifest(),
        "overhead_s_per_batch": session.overhead_s / max(steps, 1),
    }


def _interval(policy: Policy) -> dict[str, Any] | None:
    """Return the intervals of --policy checkfreq. `batches`: pairs (batch of the run, batches between later checkpoints)."""
    decided = policy.frequency.decided if isinstance(policy, MeasuredPolicy) else None
    if decided is None:
        return None
    return {"batches": decided.intervals, "step_s": decided.step_s, "checkpoint_s": decided.stall_s}


def sources_sha256(found: Instrumentation) -> str:
    """Return one SHA-256 for the files that the loops are in."""
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(found.sources.items())).encode()).hexdigest()
