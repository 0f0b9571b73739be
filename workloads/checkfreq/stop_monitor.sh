#!/usr/bin/env bash
# stop_monitor.sh DIR, as in the original: ends the process that start_monitor.sh started, and moves the process's files to DIR.
set -euo pipefail
if [ "$#" -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
if [ ! -e monitor.pid ]; then
    echo "$0: no monitor.pid here: call it where start_monitor.sh was called" >&2
    exit 1
fi
pid=$(<monitor.pid)
kill -INT "$pid" 2>/dev/null || true
while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
mkdir -p "$1"
rm monitor.pid
mv monitor.* "$1"
