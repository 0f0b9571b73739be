#!/usr/bin/env bash
# Trace the original and the emulated run of each workload: run_timeline_experiments.sh [--smoke] [OPTION OF iotwin run...]
#
# --smoke takes the size that any machine can run. Cells that finished earlier do not run again.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/..
. "$root/common/environment.sh"
experiment=timeline
if [ "${1:-}" = --smoke ]; then
    experiment=timeline-smoke
    shift
fi
exec iotwin run "$experiment" "$@"
