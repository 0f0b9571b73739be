"""The eviction heuristics by name.

Each heuristic chooses the formula of a storage's cost, and whether size and staleness count; see `eviction.score`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from iotwin.common.errors import UsageError, nearest
from iotwin.workloads.dtr.simulator import kernel_codes


@dataclass(frozen=True)
class Heuristic:
    """An eviction rule: evict the storage with the least cost / (size * staleness). A rule may omit size or staleness."""

    name: str
    title: str
    cost: int = kernel_codes.UNIT
    by_size: bool = False
    by_staleness: bool = False
    choice: int = kernel_codes.SCORE
    plug_in: Callable[[int, int, int, int], float] | None = None  # (size, cost, staleness, clock) -> score

    @property
    def random(self) -> bool:
        """True if the heuristic chooses at random, so that experiments need several trials."""
        return self.choice == kernel_codes.RANDOM


_COSTS = {
    "E": (kernel_codes.NEIGHBOURHOOD, "e*"),
    "Eq": (kernel_codes.SETS, "eq. class"),
    "Local": (kernel_codes.LOCAL, "local"),
    "": (kernel_codes.UNIT, "no cost"),
}


def _ablation() -> list[Heuristic]:
    found = []
    for letter, (cost, text) in _COSTS.items():
        for size, stale in ((True, True), (True, False), (False, True), (False, False)):
            name = f"Ab{letter}{'Size' if size else ''}{'Stale' if stale else ''}"
            title = f"{text}, {'size' if size else 'no size'}, {'staleness' if stale else 'no staleness'}"
            if name != "Ab":
                found.append(Heuristic(name, title, cost, size, stale))
    return [*found, Heuristic("AbRandom", "no cost, no size, no staleness (random)", choice=kernel_codes.RANDOM)]


ABLATION = _ablation()
MAIN = [
    Heuristic("DTR", "h_DTR", kernel_codes.NEIGHBOURHOOD, True, True),
    Heuristic("DTREqClass", "h_DTR, eq. class", kernel_codes.SETS, True, True),
    Heuristic("DTRLocal", "h_DTR, local", kernel_codes.LOCAL, True, True),
    Heuristic("MSPS", "h_MSPS", kernel_codes.ANCESTORS, True),
    Heuristic("LRU", "h_LRU", choice=kernel_codes.LEAST_RECENT),
    Heuristic("LargestStorage", "h_size", kernel_codes.UNIT, True),
    Heuristic("RandomStorage", "h_rand", choice=kernel_codes.RANDOM),
]
UNOPTIMISED = Heuristic("DTRUnopt", "h_DTR, one set", kernel_codes.UNION, True, True)
HEURISTICS = {heuristic.name: heuristic for heuristic in [*MAIN, UNOPTIMISED, *ABLATION]}
ALIASES = {
    "dtr-eq": "DTREqClass", "eq": "DTREqClass", "h_eq": "DTREqClass", "h_dtr": "DTR", "dtr-local": "DTRLocal",
    "local": "DTRLocal", "h_local": "DTRLocal", "dtr-unopt": "DTRUnopt", "h_lru": "LRU",
    "size": "LargestStorage", "h_size": "LargestStorage",
    "random": "RandomStorage", "h_msps": "MSPS", "e*": "AbESize", "h_e*": "AbESize",
}  # fmt: skip


def heuristic_named(name: str) -> Heuristic:
    """Return the heuristic `name` (in any case), or the user's `module.function`. Raises UsageError if unknown."""
    known = {known.lower(): HEURISTICS[known] for known in HEURISTICS}
    known |= {alias: HEURISTICS[full] for alias, full in ALIASES.items()}
    if name.lower() in known:
        return known[name.lower()]
    if "." in name:
        return _plug_in(name)
    raise UsageError(f"unknown heuristic '{name}'{nearest(name, [*HEURISTICS, *ALIASES])}; known: {', '.join(HEURISTICS)}")


def _plug_in(name: str) -> Heuristic:
    module, _, function = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"heuristic '{name}' cannot be imported: {error}") from None
    if not callable(found):
        raise UsageError(f"heuristic '{name}' is not a function; give one of (size, cost, staleness, clock)")
    return Heuristic(name, name, kernel_codes.PLUG_IN, plug_in=found)
