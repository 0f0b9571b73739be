"""A finding about a traced job: a problem with its evidence, the change that solves it, and the change's predicted gain."""

from dataclasses import dataclass, field
from typing import Any

from iotwin.common.numbers.confidence import Estimate


@dataclass(frozen=True)
class JobChange:
    """A change of a job's `setting` from one value to another, in the words of its framework. `where`: the object to change.

    `overrides`: the same change of the job's twin, None if the twin cannot make it. `warms`: the data are cached before the run.
    """

    setting: str
    before: Any
    after: Any
    where: str
    overrides: tuple[str, ...] | None = None
    warms: bool = False

    @property
    def is_testable(self) -> bool:
        """Return whether the twin can make the change."""
        return self.overrides is not None or self.warms

    def __str__(self) -> str:
        """Return the change as a person writes it, such as num_workers=4."""
        return f"{self.setting}={self.after}" if self.setting.isidentifier() else f"{self.setting}: {self.after}"


@dataclass
class JobFinding:
    """One kind of problem. `sql` is a query for ``iotwin stats TRACE --sql`` that shows the evidence.

    `predicted`: ratio of step times, changed by unchanged, with its interval; None if it was not tested. `of_run`: `predicted` is
    the ratio of the durations of whole runs instead, since the change affects more than steps. `floor`: the least ratio that the
    machine's processors permit.
    """

    kind: str
    sentence: str
    evidence: dict[str, Any]
    sql: str
    change: JobChange
    floor: float = 0.0
    of_run: bool = False
    predicted: Estimate | None = None
    runs: int = 0
    significant: bool = False
    notes: list[str] = field(default_factory=list)

    def to_document(self, rank: int) -> dict[str, Any]:
        """Return the finding as a JSON document; `rank`: its position among the findings, from 1."""
        predicted = None
        if self.predicted is not None:
            value, low, high = self.predicted
            predicted = {"step_time_ratio": value, "low": low, "high": high, "runs": self.runs}
        change = {"setting": self.change.setting, "from": self.change.before, "to": self.change.after, "where": self.change.where}
        return {
            "kind": self.kind, "rank": rank, "sentence": self.sentence, "evidence": self.evidence, "sql": self.sql,
            "change": change, "predicted": predicted, "significant": self.significant, "notes": self.notes,
        }  # fmt: skip


def describe_change(finding: dict[str, Any]) -> str:
    """Return the change that a finding (a document) proposes, in words."""
    return "change {setting} from {from} to {to} ({where})".format(**finding["change"])


def describe_gain(finding: dict[str, Any]) -> str:
    """Return what the change of a finding (a document) gains, in words."""
    predicted = finding["predicted"]
    if predicted is None:
        return "not tested on the twin"
    value, low, high = (predicted[key] for key in ("step_time_ratio", "low", "high"))
    bounds = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    if not finding["significant"]:
        return f"no gain above noise, steps take {value:.2f}{bounds} of the time"
    return f"steps take {value:.2f}{bounds} of the time, in the twin so changed"
