#!/usr/bin/env bash
# The original's memory monitor: prints used and free memory in GiB every second until it is ended. `iotwin trace` records both.
exec free -g -s 1
