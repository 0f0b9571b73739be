"""The interface of providers. Each saves and restores one kind of a script's objects."""

from typing import Any, Protocol

State = dict[str, Any]


class NotBuilt(Exception):
    """Raised if an object has no variables before its first training step, so that its state cannot be restored yet."""


class Provider(Protocol):
    """Saves and restores one kind of object. `draws`: its objects are random generators."""

    draws: bool

    def knows(self, value: Any) -> bool:
        """Return whether an object is of this kind."""

    def save(self, value: Any, unsaved: dict[str, str]) -> Any:
        """Return the object's state as nested tensors, arrays and plain values.

        Entries of dicts that cannot be saved are left out. `unsaved` gets, by the entry's path in the state, the reason, which
        names the type.
        """

    def load(self, value: Any, saved: Any) -> None:
        """Restore an object's state. Raises IotwinError if the state does not fit, NotBuilt if the object needs a step first."""
