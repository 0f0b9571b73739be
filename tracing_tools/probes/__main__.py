"""``python -m iotwin.tracing_tools.probes``, which setup.sh runs, compiles the eBPF programs."""

import sys

from iotwin.common.errors import IotwinError
from iotwin.tracing_tools.probes import compiled_probes
from iotwin.tracing_tools.probes.compilation import PROGRAMS

try:
    for program in PROGRAMS:
        print(compiled_probes(program))
except IotwinError as error:
    sys.exit(f"setup: {error}")
