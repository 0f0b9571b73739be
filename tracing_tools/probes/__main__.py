"""``python -m tracing_tools.probes``: compile the eBPF programs, as setup.sh does."""

import sys

from tracing_tools.probes import PROGRAMS, compiled_probes
from tracing_tools.trace.errors import IotwinError

try:
    for program in PROGRAMS:
        print(compiled_probes(program))
except IotwinError as error:
    sys.exit(f"setup: {error}")
