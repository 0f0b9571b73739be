"""Runs a piece of a script up to its loop, changes its state as training does, and restores that in a second run."""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from iotwin.workloads.detrain.saving import script_state
from iotwin.workloads.detrain.saving.saved_state import ScriptState
from iotwin.workloads.state.torch_state import TORCH


class BegunScript(NamedTuple):
    """A script that has come to its loop. Its function `script` has one variable, `root`."""

    run: Iterator[None]
    frame: types.FrameType  # of a generator that waits, so that no other frames are outside of it
    state: ScriptState
    taken: dict[str, Any]  # variables that a restored state assigns

    @property
    def root(self) -> Any:
        return self.frame.f_locals["root"]


def begun(make: Callable[[], Any]) -> BegunScript:
    """Return a script whose variable is what `make` returns."""

    def script(root: Any) -> Any:
        yield

    run = script(make())
    next(run)
    taken: dict[str, Any] = {}
    state = ScriptState(lambda _, name, value: taken.__setitem__(name, value))
    state.begin(run.gi_frame)
    return BegunScript(run, run.gi_frame, state, taken)


def written(state: Any) -> Any:
    """Return a state as it is read from a checkpoint."""
    tensors, values = TORCH.flatten(state)
    return TORCH.unflatten(msgspec.json.decode(msgspec.json.encode(values)), {each.name: each for each in tensors})


def restored(make: Callable[[], Any], state: Any) -> BegunScript:
    """Return a script that has resumed with a state."""
    script = begun(make)
    script.state.restore(state, script.frame)
    script_state.put_variables(script.frame, script.taken)
    return script


@contextmanager
def without_modules() -> Iterator[None]:
    """Leave the variables of modules out of the state, as those of other tests."""
    before = script_state.scripts_modules
    script_state.scripts_modules = dict  # type: ignore[assignment]
    try:
        yield
    finally:
        script_state.scripts_modules = before
