"""The checkpoints among what a run that goes on reads first: they stand in for those that were there before it."""

import re
from typing import Literal

from benchmark.config.schema import Config

Look = Literal["opened", "read"]


def stand_ins(config: Config) -> list[list[tuple[str, Look]]]:
    """Return each, oldest first, by those of its files that later checkpoints look at: name as in startup_files, and how."""
    if config.twin.resume is None:
        return []
    found: dict[tuple[int, ...], list[tuple[str, Look]]] = {}
    for file in config.twin.checkpoint.files:
        pattern = re.sub(r"\\\{(epoch|step)\\\}", r"(\\d+)", re.escape(file.name))
        for name in config.twin.startup_files:
            if file.looked_at is not None and (match := re.fullmatch(f"(?:.*/)?{pattern}", name)):
                found.setdefault(tuple(map(int, match.groups())), []).append((name, file.looked_at))
    return [found[number] for number in sorted(found)]
