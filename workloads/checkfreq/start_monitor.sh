#!/usr/bin/env bash
# Starts to monitor the machine, under the name of the original's script. stop_monitor.sh, in the same directory, ends it.
#
# Runs `iotwin trace --all`, which traces the storage of all processes, and CPU, memory, disks and GPUs every second.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/../..
. "$root/common/environment.sh"
set -m # otherwise a background process ignores SIGINT, which stop_monitor.sh sends
if [ -e monitor.pid ]; then
    echo "$0: monitor.pid is there: call stop_monitor.sh first" >&2
    exit 1
fi
iotwin trace --all --force --quiet -o monitor.trace </dev/null >monitor.out 2>&1 &
echo $! >monitor.pid
