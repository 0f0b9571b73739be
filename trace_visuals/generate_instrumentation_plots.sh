#!/usr/bin/env bash
# Draws the step breakdowns of instrumented runs.
#   generate_instrumentation_plots.sh [DATA_DIR [PLOTS_DIR]]       (instrumentation_data, plots/instrumentation)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/common/environment.sh"
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" -m iotwin plot steps "${1:-instrumentation_data}" -o "${2:-plots/instrumentation}"
