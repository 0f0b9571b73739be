"""The recipe of an answer: what a reader needs to obtain it again, or to judge it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iotwin import __version__
from iotwin.command_lines import this_command
from iotwin.common.untrusted_files import sha256_of

if TYPE_CHECKING:
    from iotwin.workload_yaml import Config


class Recipe:
    """The recipe of an answer that starts now. `twin`: the YAML of the question."""

    def __init__(self, twin: Path) -> None:
        self._twin, self._load = twin, os.getloadavg()[0]

    def document(self, variants: Mapping[str | None, tuple["Config", Sequence[str]]]) -> dict[str, Any]:
        """Return the recipe at the end of the runs. `variants`: by value, the composed workload and its overrides.

        ``values`` of the unchanged workload are all values that differ from their defaults. For another variant, they are all
        values that differ from the unchanged workload. ``load``: mean number of runnable processes in the last minute.
        """
        from iotwin.loops.experiments.run_cells import machine
        from iotwin.workload_yaml import Config

        before, rows = msgspec.to_builtins(Config()), []
        for value, (config, overrides) in variants.items():
            composed = msgspec.to_builtins(config)
            rows.append({"value": value, "overrides": list(overrides), "values": _changed(composed, before)})
            before = composed if value is None else before
        recorded = next(iter(variants.values()))[0].twin.recorded
        return {
            "twin": identity_of(self._twin),
            "recording": None if recorded is None else identity_of(Path(recorded.file)),
            "command": this_command(),
            "variants": rows,
            "machine": machine(),
            "load": {"start": self._load, "end": os.getloadavg()[0]},
            "iotwin": __version__,
        }


def identity_of(path: Path) -> dict[str, str] | None:
    """Return the path and the digest of a file; None if it does not exist, like the primary config that --dlio assumes."""
    return {"path": str(path.absolute()), "sha256": sha256_of(path)} if path.is_file() else None


def _changed(values: dict[str, Any], usual: Any, at: str = "") -> dict[str, Any]:
    """Return the leaves of `values` that differ from `usual`, by path."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        other = usual.get(key) if isinstance(usual, dict) else None
        if isinstance(value, dict):
            found |= _changed(value, other, f"{at}{key}.")
        elif value != other:
            found[at + key] = value
    return found
