"""The change that a page shows first: the best one that ``iotwin advise`` tested, from the document that advise printed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.errors import UsageError
from iotwin.common.untrusted_files import read_foreign_struct
from iotwin.loops.answers.finding import describe_change, describe_gain

_NO_GAIN = "Nothing that advise tested on the twin gains more than noise."


class _Ratio(msgspec.Struct):
    step_time_ratio: float
    low: float | None = None
    high: float | None = None


class _Setting(msgspec.Struct):
    setting: str
    where: str
    before: Any = msgspec.field(default=None, name="from")
    after: Any = msgspec.field(default=None, name="to")


class _AdvisedFinding(msgspec.Struct):
    change: _Setting
    predicted: _Ratio | None
    significant: bool


class _AdviceDocument(msgspec.Struct):
    trace: str
    findings: list[_AdvisedFinding]


def advised_change(path: Path, traces: Sequence[Path]) -> tuple[int, str | None]:
    """Return the index of the trace that the advice in the file `path` is about, and a sentence on the change that gains most.

    The sentence is None if advise tested nothing. Raises UsageError if the file is missing or about none of the `traces`, and
    IotwinError if it is no document of ``iotwin advise --json``.
    """
    try:
        document = read_foreign_struct(path, _AdviceDocument)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; write it by: iotwin advise {traces[0]} --json > {path}") from None
    about = Path(document.trace).resolve()
    found = [index for index, trace in enumerate(traces) if trace.resolve() == about]
    if not found:
        raise UsageError(f"{path}: is about {document.trace}, which is not among the traces of the page; advise {traces[0]}")
    tested = [each for each in document.findings if each.predicted is not None]
    best = next((msgspec.to_builtins(each) for each in tested if each.significant), None)
    if best is None:
        return found[0], _NO_GAIN if tested else None
    change = describe_change(best)
    return found[0], f"{change[0].upper()}{change[1:]}: {describe_gain(best)}."
