"""Records of measurements: one JSON file a subject, a line a figure; and which of them the code has left behind."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.perf.claims import SECTIONS
from tests.perf.figures import Figure, machine
from tests.perf.subjects import SUBJECTS

RECORDS = Path(__file__).with_name("records")


@dataclass
class Record:
    """One measured value, how it was measured, and the folders whose code it depends on."""

    figure: str
    value: float
    unit: str  # "" if the name of the figure has it
    bound: float | None
    at_most: bool  # the bound is an upper one
    detail: str
    machine: str
    load: str  # in words, or the number of runnable processes at the start and the end
    commit: str | None  # None if not known, or if the working tree differed from the commit
    date: str  # YYYY-MM-DD
    command: str
    covers: list[str]

    @property
    def met(self) -> bool:
        """True if the value keeps its bound, or has none."""
        return Figure(self.figure, self.value, self.bound, self.at_most).met

    def is_outdated(self) -> bool:
        """Return True if the code that the record covers changed after the measurement."""
        since = [f"{self.commit}..HEAD"] if self.commit else [f"--since={self.date}T00:00:00"]
        command = ["git", "log", "-1", "--format=%h", *since, "--", *self.covers]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return found.returncode != 0 or bool(found.stdout.strip())


def read_records(subject: str) -> list[Record]:
    """Return the records of a subject, [] if it has never been measured."""
    path = RECORDS / f"{subject}.json"
    return [Record(**record) for record in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def write_records(subject: str, records: Iterable[Record]) -> None:
    """Replace the records of a subject."""
    lines = ",\n".join(json.dumps(asdict(record), ensure_ascii=False) for record in records)
    (RECORDS / f"{subject}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def record_figures(subject: str, figures: Iterable[Figure]) -> int:
    """Print each figure and record it as soon as it is measured; return how many miss their bound."""
    commit, begin, missed = _clean_commit(), os.getloadavg()[0], 0
    for figure in figures:
        print(figure.line(), flush=True)
        missed += not figure.met
        record = Record(
            figure.name, float(f"{figure.value:.4g}"), unit_of(subject, figure.name), figure.bound, figure.at_most, figure.detail,
            machine(), f"{begin:.1f} to {os.getloadavg()[0]:.1f}", commit, time.strftime("%Y-%m-%d"),
            _command(subject), list(SUBJECTS[subject]),
        )  # fmt: skip
        kept = {earlier.figure: earlier for earlier in read_records(subject)} | {figure.name: record}
        write_records(subject, kept.values())
    return missed


def unit_of(subject: str, figure: str) -> str:
    """Return the unit that the page gives to the figure, "" if the page does not show it."""
    claims = [claim for section in SECTIONS for claim in section.claims if claim.subject == subject]
    return next((claim.unit for claim in claims if re.fullmatch(claim.figures, figure)), "")


def _command(subject: str) -> str:
    own = f"perf_{subject}"  # a module that was started by itself, with arguments that choose a part of its figures
    return (
        shlex.join(["python", "-m", f"tests.perf.{own}", *sys.argv[1:]])
        if own in sys.argv[0]
        else f"python -m tests.perf {subject}"
    )


def _clean_commit() -> str | None:
    """Return HEAD's commit, or None if a tracked file differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return None if not found or found.endswith("-dirty") else found
