"""Runs an action when the script first imports a package, so that iotwin need not import it."""

import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

_Action = Callable[[], None]


class _ActionFinder(MetaPathFinder):
    """Finds the packages in `actions` through Python's other finders, and runs a package's actions once it is imported."""

    def __init__(self) -> None:
        self.actions: dict[str, list[_Action]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        actions = self.actions.pop(name, None)  # removed, so that the search below does not enter this finder again
        spec = importlib.util.find_spec(name) if actions else None
        if actions is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: types.ModuleType) -> None:
            execute(module)
            for action in actions:
                action()

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


_finder = _ActionFinder()


def after_import(package: str, action: Callable[[], None]) -> None:
    """Run `action` as soon as the top-level `package` has been imported. A package's actions run in the order of calls."""
    if package in sys.modules:
        action()
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(package, []).append(action)
