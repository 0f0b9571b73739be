"""The rows of a table as dictionaries, which exist only while they are read: those of a million rows take a gigabyte."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import pandas as pd

_AT_ONCE = 1 << 12


class TableRows(Sequence[dict[str, Any]]):
    """The rows of `table` as dictionaries for JSON, with None for missing values."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return a row, or a list of rows."""
        chosen = self.table.iloc[index] if isinstance(index, slice) else self.table.iloc[[index]]
        plain = chosen.astype(object).where(chosen.notna(), None)
        found = [dict(zip(plain.columns, row, strict=True)) for row in plain.itertuples(index=False)]
        return found if isinstance(index, slice) else found[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows."""
        return (row for at in range(0, len(self), _AT_ONCE) for row in self[at : at + _AT_ONCE])
