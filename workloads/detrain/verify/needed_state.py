"""Finds which parts of a script's state a resumed run needs: it resumes without them and compares the later steps."""

from collections.abc import Callable, Sequence
from pathlib import Path

from iotwin.common.checkpoints import look
from iotwin.workloads.detrain.saving.script_store import FOLDER, ScriptStore
from iotwin.workloads.detrain.script_ranks import ScriptRanks
from iotwin.workloads.detrain.verify.verification import VerifiedScript

_ALWAYS = ("rng", "loader")  # the global generators, and the loader's position in the epoch
_KINDS = ("objects", "iterators", "tensors", "plain", "made")


def parts_of(script: VerifiedScript, output: Path, checkpoint: str) -> list[str]:
    """Return the parts of the state in a checkpoint: `rng`, `loader`, and the paths of objects and variables of all ranks."""
    found = look(output / FOLDER / checkpoint)
    parts = dict.fromkeys(_ALWAYS)
    for rank in range(script.ranks):
        store = ScriptStore(output, {"script": script.script.name}, ranks=ScriptRanks(rank, script.ranks))
        _, state = store.read(found)
        parts |= dict.fromkeys(path for kind in _KINDS for path in state[kind])
    return list(parts)


def needed(parts: Sequence[str], is_equal: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return the parts that a resumed run needs: if one of them alone is left out, later steps differ.

    `is_equal(without)` resumes without the parts `without`. All parts are first left out together. If the steps are
    then equal, no part is needed.
    """
    if not parts or is_equal(parts):
        return []
    if len(parts) == 1:
        return list(parts)
    half = len(parts) // 2
    return [*needed(parts[:half], is_equal), *needed(parts[half:], is_equal)]
