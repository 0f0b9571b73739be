"""Tables of measurements: one CSV file for each run, with the columns that the programs of DTR's authors write."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.untrusted_files import read_foreign_text
from iotwin.workloads.dtr.experiments.settings import Setting
from iotwin.workloads.dtr.experiments.trials import MEASURED, Row

_FIRST = ("input", "rep", "num_retries", *MEASURED)


def table_text(setting: Setting, rows: list[Row]) -> str:
    """Return the table of a run: a line for each measured step. The cells of columns that were not measured are empty."""
    columns = (*_FIRST, *(key for key in setting.params if key not in MEASURED))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


@dataclass(frozen=True)
class Table:
    """A table that was read: by input and column, the numbers of all steps. Columns without numbers are left out."""

    inputs: dict[int, dict[str, list[float]]]
    retries: int | None
    budget_bytes: float | None


def read_table(path: Path) -> Table:
    """Return the table at `path`. Raises IotwinError if it is missing or not a table of measurements."""
    inputs: dict[int, dict[str, list[float]]] = {}
    retries, budget = None, None
    try:
        for row in csv.DictReader(io.StringIO(read_foreign_text(path))):
            metrics = inputs.setdefault(int(row["input"]), {})
            for column in MEASURED:
                if row.get(column):
                    metrics.setdefault(column, []).append(float(row[column]))
            retries = int(row["num_retries"]) if retries is None else retries
            budget = float(row["memory_budget"]) if budget is None and row["memory_budget"] else budget
    except FileNotFoundError:
        raise IotwinError(f"{path} is missing; run the experiment again") from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise IotwinError(f"{path} is no table of measurements: {error}") from None
    return Table(inputs, retries, budget)
