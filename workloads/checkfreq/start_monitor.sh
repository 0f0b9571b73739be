#!/usr/bin/env bash
# The original's call that starts monitoring the machine: start_monitor.sh. stop_monitor.sh ends it, in the same directory.
#
# It runs `iotwin trace --all`: storage of all processes, and CPU, memory, disks and GPUs every second, in monitor.trace.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/../..
. "$root/common/environment.sh"
set -m # else what runs in the background ignores the SIGINT that ends it
if [ -e monitor.pid ]; then
    echo "$0: monitor.pid is there: call stop_monitor.sh first" >&2
    exit 1
fi
iotwin trace --all --force --quiet -o monitor.trace </dev/null >monitor.out 2>&1 &
echo $! >monitor.pid
