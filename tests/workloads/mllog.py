"""MLLOG lines as tests read them."""

import json

_MARK = ":::MLLOG "


def entries(text):
    """The MLLOG entries of a job's output, in order; every such line must be whole."""
    return [json.loads(line.removeprefix(_MARK)) for line in text.splitlines() if line.startswith(_MARK)]


def parts(log):
    """The durations in nanoseconds of each instrumented part."""
    found = {}
    for entry in log:
        if isinstance(entry["value"], dict):
            assert entry["event_type"] == "INTERVAL_END" and entry["value"].keys() == {"start", "duration"}
            found.setdefault(entry["key"], []).append(entry["value"]["duration"])
    return found


def intervals(log):
    """(key, START or END) in order."""
    return [
        (e["key"], e["event_type"].removeprefix("INTERVAL_"))
        for e in log
        if e["event_type"] != "POINT_IN_TIME" and not isinstance(e["value"], dict)
    ]
