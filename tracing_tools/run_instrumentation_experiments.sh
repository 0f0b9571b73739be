#!/usr/bin/env bash
# Time the parts of the steps of each workload over GPUs and batch sizes:
# run_instrumentation_experiments.sh [--smoke] [OPTION OF iotwin run...]
#
# --smoke takes the size that any machine can run. Cells that finished earlier do not run again.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/..
. "$root/common/environment.sh"
experiment=instrumentation
if [ "${1:-}" = --smoke ]; then
    experiment=instrumentation-smoke
    shift
fi
exec iotwin run "$experiment" "$@"
