#!/usr/bin/env bash
# The original's memory monitor: prints GiB in use and free every second until it is ended. `iotwin trace` records the same.
exec free -g -s 1
