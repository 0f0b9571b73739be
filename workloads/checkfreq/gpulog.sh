#!/usr/bin/env bash
# The original's watch of GPUs: gpulog.sh prints power and utilisation every ten seconds, until it is ended. `iotwin trace` keeps the same.
exec nvidia-smi --query-gpu=timestamp,name,power.draw,utilization.gpu,utilization.memory --format=csv -l 10
