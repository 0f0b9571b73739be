"""What saves and restores one kind of a script's objects."""

from typing import Any, Protocol

State = dict[str, Any]


class NotBuilt(Exception):
    """An object makes its variables in its first step, so a state cannot be put into it before."""


class Provider(Protocol):
    """Saves and restores one kind of object. `draws`: its objects are random generators."""

    draws: bool

    def knows(self, value: Any) -> bool:
        """Return whether an object is of this kind."""

    def save(self, value: Any, unsaved: dict[str, str]) -> Any:
        """Return the object's state: nested values of tensors, arrays and plain values. `unsaved` gets what it leaves out."""

    def load(self, value: Any, saved: Any) -> None:
        """Give the object a saved state. Raises IotwinError if it does not fit, and NotBuilt if the object has to make a step."""
