"""Patterns of the names of checkpoint files, in which '{epoch}' and '{step}' stand for numbers."""

import re
from pathlib import PurePosixPath

from iotwin.workload_yaml.schema import Config

WORDS = ("epoch", "step")


def numbers_in(name: str, pattern: str) -> tuple[int, int] | None:
    """Return the numbers (epoch, step) in the file name `name`; None if `name` does not match `pattern`.

    The epoch is 1 if `pattern` has no '{epoch}', and the step is 0 if `pattern` has no '{step}'.
    """
    numbered = re.escape(pattern)
    for word in WORDS:
        numbered = numbered.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)", 1).replace(rf"\{{{word}\}}", r"\d+")
    match = re.fullmatch(numbered, name)
    if match is None:
        return None
    found = match.groupdict()
    return int(found.get("epoch", 1)), int(found.get("step", 0))


def found_first(config: Config) -> dict[str, str]:
    """Return the `startup_files` that are files of checkpoints from before the run, and that later checkpoints read again.

    The result maps the name of each to the name of the file within checkpoint_folder that substitutes for it.
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
