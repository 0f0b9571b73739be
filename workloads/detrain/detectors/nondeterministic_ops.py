"""Detects the PyTorch operations in a script that have no deterministic implementation."""

import re
import sys
import warnings
from typing import Any

from iotwin.workloads.detrain.detectors.findings import Findings
from iotwin.workloads.detrain.detectors.script_frames import script_line

# The warnings of torch.use_deterministic_algorithms(True, warn_only=True). The first group is the operation.
_WARNING = re.compile(
    r"(?:(\S+) does not have a deterministic implementation, but you set|(.+?) defaults to a non-deterministic algorithm)"
)


def watch(findings: Findings) -> None:
    """Record each operation that torch warns about with the script's line, and hide the warning.

    For operations of the backward pass, it is the line that calls `backward`. The script's warning filters do not matter.
    """
    shown: Any = warnings._showwarnmsg  # type: ignore[attr-defined]  # the function that Python and torch call with each warning
    mutated: Any = warnings._filters_mutated  # type: ignore[attr-defined]  # called after each change of the filters
    ours = ("always", _WARNING, UserWarning, None, 0)

    def recorded(message: warnings.WarningMessage) -> None:
        match = _WARNING.match(str(message.message))
        if match is None:
            shown(message)
        elif (line := script_line(sys._getframe(1))) is not None:
            findings.add(match[1] or match[2], line.file, line.line)

    def filtered() -> None:
        filters: Any = warnings.filters
        if filters[:1] != [ours]:
            filters[:] = [ours, *(each for each in filters if each != ours)]
        mutated()

    warnings._showwarnmsg = recorded  # type: ignore[attr-defined]
    warnings._filters_mutated = filtered  # type: ignore[attr-defined]
    filtered()
