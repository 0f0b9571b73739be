"""Checks the loops that were found in a script, by running it until its batch loop has iterated a few times."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import scratch_folder
from iotwin.common.processes.children import dying_with_us
from iotwin.common.untrusted_files import read_foreign_struct
from iotwin.workloads.detrain.instrumentation import CallLine, Instrumentation, changed_sources, write_instrumentation
from iotwin.workloads.detrain.observed_loops import MOST_ITERATIONS, LoopReport

_GRACE_S = 10.0  # time after the timeout in which the child must write its report
_CONFIRMED, _REFUTED = 0.95, 0.3
# `discover` gives these reasons for a low confidence. A run of five iterations cannot refute them.
_LASTING = ("several loops train", "a framework trains too")


def confirm(found: Instrumentation, arguments: Sequence[str] = (), timeout_s: float = 60.0) -> Instrumentation:
    """Run the script with `arguments` in the current directory until its batch loop begins five iterations.

    Returns `found` with what the run showed.

    The result has `confirmed`, `iterations`, the update that really runs, an adjusted confidence, and `reads_in_data_call`: the
    number of read system calls of the process during these iterations' data calls, None if unknown. What the script prints goes
    to stderr. The script's processes are killed at the end. Raises IotwinError if the script cannot be run.
    """
    begin = time.perf_counter()
    if changed := changed_sources(found):
        raise IotwinError(f"{changed[0]}: has changed since its loops were found; discover the script again")
    report = _observe(found, arguments, timeout_s)
    result = judged(found, report)
    return msgspec.structs.replace(result, seconds=found.seconds + time.perf_counter() - begin)


def _observe(found: Instrumentation, arguments: Sequence[str], timeout_s: float) -> LoopReport:
    with scratch_folder() as folder:
        write_instrumentation(folder / "inst.json", found)
        command = [sys.executable, "-m", "iotwin.workloads.detrain.observed_loops"]
        command += [str(folder / "inst.json"), str(folder / "report.json"), str(timeout_s), found.script, *arguments]
        # The script prints to stderr, since the command may print its result to stdout as JSON.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=dying_with_us(signal.SIGKILL)
        )
        try:
            process.wait(timeout_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers too
            process.wait()
        try:
            return read_foreign_struct(folder / "report.json", LoopReport)
        except FileNotFoundError:
            raise IotwinError(f"{found.script}: ended before its loops could be observed; run it by itself to see why") from None


def _framework(found: Instrumentation, report: LoopReport) -> Instrumentation:
    reached = sum(report.sinks) > 0
    reason = "the call that trains was reached" if reached else f"the call that trains was not reached ({report.ended})"
    return _with(found, reached, report, [reason])


def judged(found: Instrumentation, report: LoopReport) -> Instrumentation:
    """Return `found` with what the report of a run confirms or refutes."""
    if found.batch is None:
        return _framework(found, report)
    if not report.iterations:
        return _with(found, False, report, [f"the batch loop did not begin ({report.ended})"])
    reasons = [f"{report.iterations} iterations of the batch loop ran"]
    confirmed = True
    if found.data is not None and report.data == 0:
        confirmed = False
        reasons.append("the data call did not run in them")
    hits = dict(zip(found.sinks, report.sinks, strict=False))
    if found.update is not None and not hits.get(found.update):
        other = _other_update(found, hits)
        if other is None:
            confirmed = False
            reasons.append("no weights were updated in them")
        elif _is_gradient(other):
            reasons.append("gradients are accumulated over more iterations than these")
        else:
            found = msgspec.structs.replace(found, update=other)
            reasons.append(f"the update that runs is {other.call}")
    elif found.update is not None and hits[found.update] < report.iterations - 1:
        reasons.append(f"the weights were updated {hits[found.update]} times")
    return _with(_with_loader(found, report), confirmed, report, reasons)


def _other_update(found: Instrumentation, hits: dict[CallLine, int]) -> CallLine | None:
    """Return the last call in `found.sinks` that ran and updates weights, else one that computes gradients, else None."""
    ran = [sink for sink in found.sinks if hits.get(sink)]
    updates = [sink for sink in ran if not _is_gradient(sink)]
    return next(reversed(updates or ran), None)


def _is_gradient(sink: CallLine) -> bool:
    return any(word in sink.call for word in ("backward(", ".gradient(", ".grad("))


def _with_loader(found: Instrumentation, report: LoopReport) -> Instrumentation:
    if found.loader is not None and report.persistent is not None:
        found = msgspec.structs.replace(found, loader=msgspec.structs.replace(found.loader, persistent=report.persistent))
    if report.is_generator is not None and found.kind in ("FOR_OVER_LOADER", "GENERATOR"):
        found = msgspec.structs.replace(found, kind="GENERATOR" if report.is_generator else "FOR_OVER_LOADER")
    return found


def _with(found: Instrumentation, confirmed: bool, report: LoopReport, reasons: list[str]) -> Instrumentation:
    confidence = found.confidence
    if not confirmed:
        confidence = min(confidence, _REFUTED)
    elif not any(reason.startswith(_LASTING) for reason in found.reasons):
        confidence = max(confidence, _CONFIRMED)
    return msgspec.structs.replace(
        found,
        confirmed=confirmed,
        iterations=min(report.iterations, MOST_ITERATIONS),
        reads_in_data_call=report.reads,
        confidence=confidence,
        reasons=[*found.reasons, *reasons],
    )
