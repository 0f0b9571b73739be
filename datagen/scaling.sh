#!/bin/sh
# Grow one workload's data set: scaling.sh WORKLOAD INPUT OUTPUT SIZE, for example scaling.sh unet3d data/kits data/big 500GB
set -eu
if [ $# -ne 4 ]; then
    echo "usage: $0 WORKLOAD INPUT OUTPUT SIZE, for example: $0 unet3d data/kits data/big 500GB" >&2
    exit 2
fi
here=$(dirname "$(readlink -f "$0")")
root=$(dirname "$here")
. "$root/common/environment.sh"
exec "$PYTHON" "$here/data_scaling.py" --workload "$1" --input_path "$2" --output_path "$3" --desired_size "$4"
