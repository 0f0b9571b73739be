#!/bin/sh
# Generate the data sets of unet3d, bert and dlrm: generation.sh DIR SIZE, for example generation.sh data 16GB
# SCALE shrinks the volumes of unet3d, as small data sets require: SCALE=0.2 generation.sh data 30MB
set -eu
if [ $# -ne 2 ]; then
    echo "usage: $0 DIR SIZE, for example: $0 data 16GB" >&2
    exit 2
fi
here=$(dirname "$(readlink -f "$0")")
root=$(dirname "$here")
. "$root/common/environment.sh"
for workload in unet3d bert dlrm; do
    scale=
    if [ "$workload" = unet3d ]; then scale=${SCALE:-}; fi
    "$PYTHON" "$here/data_generation.py" -w "$workload" -o "$1/$workload" -s "$2" ${scale:+--scale "$scale"}
done
