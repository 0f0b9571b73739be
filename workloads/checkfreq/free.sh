#!/usr/bin/env bash
# The original's watch of memory: free.sh prints GiB in use and free every second, until it is ended. `iotwin trace` keeps the same.
exec free -g -s 1
