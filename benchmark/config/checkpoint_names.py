"""Names of checkpoint files: '{epoch}' and '{step}' in them stand for numbers."""

import re
from pathlib import PurePosixPath

from benchmark.config.schema import Config

WORDS = ("epoch", "step")


def numbers_in(name: str, pattern: str) -> tuple[int, int] | None:
    """Return the (epoch, step) by which `pattern` becomes `name`, 1 and 0 where it says none; None if it never does."""
    numbered = re.escape(pattern)
    for word in WORDS:
        numbered = numbered.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)", 1).replace(rf"\{{{word}\}}", r"\d+")
    match = re.fullmatch(numbered, name)
    if match is None:
        return None
    found = match.groupdict()
    return int(found.get("epoch", 1)), int(found.get("step", 0))


def found_first(config: Config) -> dict[str, str]:
    """Return which of `startup_files` are files of checkpoints that were there before, and are read at later ones, too.

    The value is the name within checkpoint_folder, where what stands in for them is.
    """
    looked_at = [file.name for file in config.twin.checkpoint.files if file.looked_at == "read"]
    if not config.workflow.checkpoint or config.checkpoint.checkpoint_mechanism_classname is not None:
        return {}
    found = {}
    for name in config.twin.startup_files:
        for pattern in looked_at:
            end = "/".join(PurePosixPath(name).parts[-len(PurePosixPath(pattern).parts) :])
            if numbers_in(end, pattern) in config.twin.checkpoint.before:
                found[name] = end
    return found
