"""Base class of the commands on a folder of checkpoints: its argument, its document and its table."""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotwin.command import Command, Outcome

if TYPE_CHECKING:
    from iotwin.common.checkpoints import Found


class StoreCommand(Command):
    """A command on a checkpoint store, the folder with a job's checkpoints."""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="the store: the folder checkpoints in a job's --output")

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.units import format_size

        print(f"{'checkpoint':<16}{'step':>10}{'epoch':>7}{'position':>10}{'ranks':>7}{'size':>11}")
        for entry in document["checkpoints"]:
            if entry["step"] is None:
                print(f"{entry['name']:<16}{'':>45}  {entry['reason']}")
                continue
            size = format_size(entry["size_bytes"])
            numbers = f"{entry['step']:>10}{entry['epoch']:>7}{entry['position']:>10}{entry['world_size']:>7}{size:>11}"
            print(f"{entry['name']:<16}{numbers}" + ("" if entry["whole"] else f"  {entry['reason']}"))
        for name in document["removed"]:
            print(f"{name} removed")
        loadable = document["loadable"]
        print(f"a job resumes from {loadable}" if loadable else f"{document['directory']} holds no checkpoint that loads")
        for name in document["left"]:
            print(f"{name} holds files that are no part of the removed checkpoint; move them elsewhere")


def outcome(
    directory: Path, check: "Callable[[Found], Found]", removed: "Sequence[Found]" = (), left: Sequence[Path] = ()
) -> Outcome:
    """Return the checkpoints of a store, newest first, after `check` of each. The exit status is 1 if none can be loaded.

    `removed`: the checkpoints that the command removed. `left`: folders of removed checkpoints that hold other programs' files.
    """
    from iotwin.common.checkpoints import checkpoints, named_latest

    found = [check(each) for each in checkpoints(directory)]
    loadable = next((each.name for each in found if each.reason is None), None)
    document = {
        "directory": str(directory),
        "latest": named_latest(directory),
        "loadable": loadable,
        "checkpoints": [_entry(each) for each in found],
        "removed": [each.name for each in removed],
        "left": [path.name for path in left],
    }
    return Outcome(document, 0 if loadable else 1)


def _entry(found: "Found") -> dict[str, Any]:
    manifest = found.manifest
    return {
        "name": found.name,
        "step": manifest.step if manifest else None,
        "epoch": manifest.epoch if manifest else None,
        "position": manifest.position.position if manifest else None,
        "world_size": manifest.world_size if manifest else None,
        "size_bytes": found.size_bytes,
        "files": len(manifest.files) if manifest else 0,
        "whole": found.reason is None,
        "reason": found.reason,
    }
