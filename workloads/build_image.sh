#!/usr/bin/env bash
# Build the docker image WORKLOAD:VARIANT. First copies the code that all workloads share into the workload's folder.
#
#   build_image.sh WORKLOAD [VARIANT] [OPTION OF docker build...]
#   for example: build_image.sh unet3d sleep --build-arg BASE=my-base
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
if [ "$#" -lt 1 ] || [ ! -f "$root/workloads/$1/Dockerfile" ]; then
    echo "usage: $0 unet3d|bert|dlrm|checkfreq [original|instrumented|sleep|profiler] [OPTION OF docker build...]" >&2
    exit 2
fi
workload=$1 variant=${2:-original}
shift "$(($# < 2 ? $# : 2))"
"$root/workloads/shared_code.sh"
exec docker build --tag "$workload:$variant" --build-arg "VARIANT=$variant" "$@" "$root/workloads/$workload"
