"""Load plug-ins that the YAML names: readers, loaders, samplers and checkpoint writers from other packages.

A package registers a plug-in as an entry point (importlib.metadata) of a group below. The YAML names the entry point, or a class
as `module.Class`. A plug-in is a factory that is called with keyword arguments:

| group | call | result |
|---|---|---|
| iotwin.readers | factory(config=, opener=) | iotwin.benchmark.emulator.readers.sample.SampleReader |
| iotwin.loaders | factory(config=, fetcher=) | iotwin.benchmark.emulator.loaders.base.Loader |
| iotwin.samplers | factory(config=, samples=, epoch=, rank=, ranks=) | sequence of index arrays, the batches of one epoch |
| iotwin.checkpoints | factory(config=, rank=, ranks=) | iotwin.benchmark.emulator.checkpoints.writer.Checkpoints |
"""

import importlib
from typing import TYPE_CHECKING, Any

from iotwin.common.errors import UsageError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from iotwin.workload_yaml import Config

READERS, LOADERS, SAMPLERS, CHECKPOINTS = (f"iotwin.{kind}" for kind in ("readers", "loaders", "samplers", "checkpoints"))


def _entry_points(group: str) -> "EntryPoints":
    from importlib.metadata import entry_points  # takes 20 ms, too long for runs without plug-ins

    return entry_points(group=group)


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plug-ins of `group`."""
    return sorted(_entry_points(group).names)


def imported_by_name(config: "Config") -> list[tuple[str, str]]:
    """Return (key, name) of the plug-ins that the workload names as `module.Class` and that are not entry points."""
    reader = config.reader
    named = (
        (READERS, "dataset.format", config.dataset.format),
        (READERS, "reader.reader_classname", reader.reader_classname),
        (LOADERS, "reader.data_loader", reader.data_loader),
        (LOADERS, "reader.data_loader_classname", reader.data_loader_classname),
        (SAMPLERS, "reader.data_loader_sampler", reader.data_loader_sampler),
        (CHECKPOINTS, "checkpoint.checkpoint_mechanism_classname", config.checkpoint.checkpoint_mechanism_classname),
    )
    return [(key, name) for group, key, name in named if name and "." in name and name not in plugin_names(group)]


def load_plugin(group: str, name: str, key: str, known: list[str]) -> Any:
    """Return the factory of the plug-in `name` of `group`. `known`: names that are built in, for messages.

    Raises UsageError, which names the YAML's `key`, if there is no such plug-in or it cannot be imported.
    """
    found = _entry_points(group).select(name=name)
    module, _, attribute = name.rpartition(".")
    try:
        if found:
            return next(iter(found)).load()
        if module:
            return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{key}: the plug-in '{name}' cannot be loaded: {error}; is its package installed whole?") from None
    names = [*known, *plugin_names(group)]
    raise UsageError(f"{key}: '{name}' is unknown{nearest(name, names)}; known: {', '.join(names)}, or a plug-in of {group}")
