"""Generator of docs/performance.md: the claims of claims.py, each with the records that hold it."""

import re
import textwrap
from collections.abc import Iterable

from tests.conftest import ROOT
from tests.perf.claims import INTRODUCTION, SECTIONS, Claim
from tests.perf.records import Record, read_records
from tests.perf.subjects import SUBJECTS

PAGE = ROOT / "docs" / "performance.md"
OUTDATED = " †"
_WIDTH = 130  # characters of a line


def records_of(claim: Claim) -> list[Record]:
    """Return the records whose figures hold the claim."""
    return [record for record in read_records(claim.subject) if re.fullmatch(claim.figures, record.figure)]


def page() -> str:
    """Return the text of docs/performance.md."""
    # A kernel's build, after its version, is no property of a machine that a reader could look for.
    builds = re.compile(r"(?<=Linux )([\d.]+)[^\s,]*")
    machines = {builds.sub(r"\1", record.machine): None for subject in SUBJECTS for record in read_records(subject)}
    measured_on = textwrap.fill(f"* Measured on: {'; '.join(machines)}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    parts = [f"{INTRODUCTION}{measured_on}\n"]
    for section in SECTIONS:
        parts.append(f"## {section.title}\n\n{section.text}\n")
        rows = [_row(claim, records) for claim in section.claims if (records := records_of(claim))]
        parts.append("\n".join(["| what | measured | bound | when | NAME |", "|---|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def write_page() -> None:
    """Write docs/performance.md."""
    PAGE.write_text(page(), encoding="utf-8")


def print_outdated() -> None:
    """Print, for each subject, how many of its figures are out of date, and the command that measures them again."""
    for subject in SUBJECTS:
        records = read_records(subject)
        outdated = sum(record.is_outdated() for record in records)
        state = f"{outdated} of {len(records)} figures out of date" if records else "no figure recorded"
        if outdated or not records:
            print(f"{subject}: {state}; python -m tests.perf {subject}")


def _row(claim: Claim, records: list[Record]) -> str:
    missed = sum(not record.met for record in records)
    measured = _range((record.value for record in records), claim.unit)
    if len(records) > 1:
        measured += f" ({len(records)} figures)"
    bounds = [record.bound for record in records if record.bound is not None]
    bound = f"{'≤' if records[0].at_most else '≥'} {_range(bounds, claim.unit)}" if bounds else "none"
    if missed:
        bound += "; **missed**" if len(records) == 1 else f"; **{missed} missed**"
    outdated = OUTDATED if any(record.is_outdated() for record in records) else ""
    return f"| {claim.what} | {measured} | {bound} | {min(record.date for record in records)}{outdated} | {claim.subject} |"


def _range(values: Iterable[float], unit: str) -> str:
    ordered = sorted({f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}" for value in values}, key=_number)
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1]))) + (f" {unit}" if unit else "")


def _number(text: str) -> float:
    return float(text.replace(",", ""))
