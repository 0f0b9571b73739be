"""Parse the lines in which DLIO logs the begin and end of epochs, blocks, evaluations and checkpoints."""

import datetime
import re
from dataclasses import dataclass

_LINE = re.compile(
    r"\[\w+\] (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?) (?P<edge>Starting|Ending|Finished) (?:saving )?"
    r"(?P<what>epoch|block|eval|checkpoint)\w*(?: (?P<number>\d+))?"
)
_PHASES = {"epoch": "epoch", "block": "block", "eval": "evaluation", "checkpoint": "checkpoint"}


@dataclass(frozen=True)
class Edge:
    """The begin or end of a phase, at the UNIX time `time_ns`. `number`: index of the epoch, block or checkpoint, if logged."""

    phase: str
    starts: bool
    time_ns: int
    number: int | None


def parse_edge(line: str, zone: datetime.tzinfo = datetime.UTC) -> Edge | None:
    """Return the begin or end of a phase that `line` logs, None if it logs neither. `zone`: the time zone of the log."""
    match = _LINE.search(line)
    if match is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(match["time"]).replace(tzinfo=zone)
    except ValueError:
        return None
    number = int(match["number"]) if match["number"] and len(match["number"]) < 10 else None
    return Edge(_PHASES[match["what"]], match["edge"] == "Starting", round(moment.timestamp() * 1e6) * 1000, number)


def zone_of(lines: list[str], begin_ns: int, end_ns: int) -> datetime.tzinfo:
    """Return the time zone of the log `lines`: this machine's zone if a line is within the span only in that zone, else UTC.

    `begin_ns`, `end_ns`: the span in which the job ran, in UNIX ns.
    """
    local = datetime.datetime.fromtimestamp(begin_ns / 1e9).astimezone().tzinfo or datetime.UTC
    for line in lines:
        for zone in (datetime.UTC, local):
            edge = parse_edge(line, zone)
            if edge is not None and begin_ns <= edge.time_ns <= end_ns:
                return zone
    return datetime.UTC
