"""What training has changed comes back in a second run of the script: equal values, held by the same others."""

import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.detrain.saved_script import begun, restored, without_modules, written

pytestmark = pytest.mark.torch


class Meter:
    """An object of the script."""

    def __init__(self) -> None:
        self.total = 0.0


class Slots:
    """An object of the script without a dict."""

    __slots__ = ("first", "second")


MAKERS = {
    "list": list, "dict": dict, "deque": lambda: deque(maxlen=4), "object": Meter, "slots": Slots, "namespace": SimpleNamespace,
    "set": set, "counter": Counter, "ordered": OrderedDict, "default": lambda: defaultdict(list),
    "tensor": lambda: torch.zeros(3), "scalar": lambda: torch.tensor(1, dtype=torch.int64), "array": lambda: np.zeros((2, 2)),
    "text": lambda: "text", "number": lambda: 0, "none": lambda: None,
}  # fmt: skip
NAMES = ("first", "second")
# What a step does to the pool of objects: (what, the object's index, which of its keys, another object's index).
STEPS = st.tuples(
    st.sampled_from((*MAKERS, "hold", "hold", "hold", "hold", "change", "change", "change", "drop", "clear", "tuple", "reverse")),
    st.integers(0, 30), st.integers(0, 3), st.integers(0, 30),
)  # fmt: skip


def play(pool: list[Any], steps: list[Any]) -> None:
    """Let objects be made, held by one another, and changed."""
    for what, index, key, other in steps:
        held, each = pool[index % len(pool)], pool[other % len(pool)]
        if what in MAKERS:
            pool.append(MAKERS[what]())
            hold(held, key, pool[-1])
        elif what == "tuple":
            pool.append((held, key))
            hold(each, key, pool[-1])
        elif what == "hold":
            hold(held, key, each)
        elif what == "change":
            change(held, key)
        elif what == "reverse" and isinstance(held, list | deque):
            held.reverse()
        elif what == "clear" and isinstance(held, list | dict | set | deque):
            held.clear()
        elif what == "drop" and isinstance(held, list | deque | dict) and held:
            held.pop(next(iter(held))) if isinstance(held, dict) else held.pop()


def hold(holder: Any, key: int, value: Any) -> None:
    if isinstance(holder, list | deque):
        holder.append(value)
    elif isinstance(holder, Counter):
        holder[str(key)] += 1
    elif isinstance(holder, dict):
        holder[str(key)] = value
    elif isinstance(holder, set):
        holder.add(key)
    elif isinstance(holder, Meter | Slots | SimpleNamespace):
        setattr(holder, NAMES[key % 2], value)


def change(held: Any, key: int) -> None:
    if isinstance(held, torch.Tensor | np.ndarray):
        held += key + 1
    elif isinstance(held, Meter):
        held.total += key + 0.5
    else:
        hold(held, key, key)


def described(value: Any, seen: dict[int, int]) -> Any:
    """Return values that are equal if two objects have equal contents, and the same objects are held in the same places."""
    if value is None or isinstance(value, str | int | float | bool):
        return type(value).__name__, struct.pack("<d", value) if isinstance(value, float) else value
    if isinstance(value, tuple):  # a tuple is equal to another with the same objects
        return "tuple", [described(each, seen) for each in value]
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return kind, str(value.dtype), value.tolist()
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.tolist()
    if isinstance(value, set):
        return kind, sorted(value)
    if isinstance(value, dict):
        return kind, [(key, described(each, seen)) for key, each in value.items()]
    if isinstance(value, list | deque):
        return kind, getattr(value, "maxlen", None), [described(each, seen) for each in value]
    names = NAMES if isinstance(value, Slots) else sorted(vars(value))
    return kind, [(name, described(getattr(value, name), seen)) for name in names if hasattr(value, name)]


def depth(value: Any, inside: tuple[int, ...] = ()) -> int:
    """Return how deeply objects are nested; 99 if one holds itself."""
    if id(value) in inside:
        return 99
    if isinstance(value, Meter | Slots | SimpleNamespace):
        below = [getattr(value, name) for name in NAMES if hasattr(value, name)]
    else:
        below = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple | deque) else []
    return 1 + max((depth(each, (*inside, id(value))) for each in below), default=0)


@given(st.lists(STEPS, max_size=20), st.lists(STEPS, max_size=20))
@settings(max_examples=500)
def test_random_states_come_back_with_equal_values_and_the_same_holders(before, training):
    pools: list[list[Any]] = []

    def make() -> Any:
        root = {"object": Meter(), "list": [], "dict": {}, "namespace": SimpleNamespace()}
        pools.append([*root.values()])
        play(pools[-1], before)
        return root

    with without_modules():
        first = begun(make)
        play(pools[0], training)
        if depth(first.root) > 7:
            return
        state = written(first.state.capture(first.frame, gradients=True))
        assert not first.state.unsaved and not first.state.left
        second = restored(make, state)
    assert described(second.root, {}) == described(first.root, {})


def trained(make: Callable[[], Any], train: Callable[[Any], None]) -> Any:
    """Return the variable of a script that has resumed after training."""
    with without_modules():
        first = begun(make)
        train(first.root)
        second = restored(make, written(first.state.capture(first.frame, gradients=True)))
    assert described(second.root, {}) == described(first.root, {})
    return second.root


def test_lists_in_a_history_stay_those_that_training_appends_to():
    def make() -> Any:
        losses: list[float] = []
        return SimpleNamespace(losses=losses, history={"train": losses, "test": []})

    root = trained(make, lambda root: root.losses.append(0.5))
    assert root.losses is root.history["train"] and root.losses == [0.5]


def test_a_new_list_is_held_by_all_who_held_it():
    def train(root: Any) -> None:
        root.losses = root.history["train"] = [0.5]

    for history in ({}, {"weights": torch.ones(1)}):
        root = trained(lambda history=history: SimpleNamespace(losses=None, history=dict(history)), train)
        assert root.losses is root.history["train"]


def test_an_object_that_is_none_later_is_none():
    trained(lambda: SimpleNamespace(best=Meter()), lambda root: setattr(root, "best", None))


def test_an_object_that_replaces_another_has_its_own_attributes_only():
    def make() -> Any:
        root = SimpleNamespace(meter=Meter())
        root.meter.first = 3
        return root

    root = trained(make, lambda root: setattr(root, "meter", Meter()))
    assert not hasattr(root.meter, "first")


def test_dicts_keep_their_order_and_queues_their_length():
    def train(root: Any) -> None:
        root["cache"].move_to_end("a")
        root["queue"] = deque([1, 2], maxlen=2)

    def make() -> Any:
        return {"cache": OrderedDict(a=[1], b=[2]), "queue": None}

    root = trained(make, train)
    assert list(root["cache"]) == ["b", "a"] and root["queue"].maxlen == 2


def test_what_is_no_longer_found_where_it_was_is_the_same_object_elsewhere():
    def make() -> Any:
        values: list[int] = []
        return SimpleNamespace(first=values, second=[values])

    root = trained(make, lambda root: setattr(root, "first", (root.first, 0)))
    assert root.first[0] is root.second[0]


def test_plain_values_of_an_epochs_start_are_put_back_as_they_were_held():
    def make() -> Any:
        losses: list[float] = []
        return SimpleNamespace(losses=losses, history={"train": losses}, epochs={}, best=1.0)

    with without_modules():
        first = begun(make)
        first.root.losses.append(0.5)
        first.root.epochs[0] = [0.5]
        first.root.best = 0.5
        state = written(first.state.plain(first.frame))
        second = begun(make)
        second.state.restore_plain(state, second.frame)
    assert described(second.root, {}) == described(first.root, {})


def test_a_group_of_an_optimizer_that_the_script_holds_remains_the_optimizers() -> None:
    """A script that sets the learning rate by its own variable sets that of the optimizer after a resume, too."""

    def make() -> dict[str, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.5, momentum=0.9)
        return {"optimizer": optimizer, "group": optimizer.param_groups[0], "groups": optimizer.param_groups}

    with without_modules():
        script = begun(make)
        script.root["group"]["lr"] = 0.25
        state = written(script.state.capture(script.frame, False))
        root = restored(make, state).root
    assert root["optimizer"].param_groups is root["groups"]
    assert root["optimizer"].param_groups[0] is root["group"]
    assert root["group"]["lr"] == 0.25


class LoadsAnew:
    """An object of the script whose loading replaces what it holds."""

    def __init__(self) -> None:
        self.values, self.seen = [0.0], [0]

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.seen = list(state["values"]), [-1]


def test_what_the_scripts_own_loading_replaces_is_restored_in_the_new_objects() -> None:
    """`seen` is not in the object's state, but has changed: the restored list is the one that the object holds."""
    with without_modules():
        script = begun(LoadsAnew)
        script.root.values[0] = 2.0
        script.root.seen.append(7)
        state = written(script.state.capture(script.frame, False))
        root = restored(LoadsAnew, state).root
    assert root.values == [2.0]
    assert root.seen == [0, 7]
