#!/usr/bin/env bash
# The original's GPU monitor: prints power and utilisation every ten seconds until it is ended. `iotwin trace` records both.
exec nvidia-smi --query-gpu=timestamp,name,power.draw,utilization.gpu,utilization.memory --format=csv -l 10
