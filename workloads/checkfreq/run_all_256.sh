#!/usr/bin/env bash
# The original's experiment, with the original's arguments: run_all_256.sh DATA OUT WORKERS. `iotwin run checkfreq` does the same.
#
# For each network: a run with CheckFreq (2 epochs), a run with checkpoints at ends of epochs (1 epoch), and a run that waits for
# each checkpoint, at CheckFreq's interval (1 epoch). Results go to folders with the original's names. Environment variables: GPUS
# is the number of ranks (default 8), BATCH the batch size, NETWORKS the networks, OPTIONS further options of the job.
set -euo pipefail
if [ "$#" -ne 3 ]; then
    echo "usage: $0 DATA OUT WORKERS" >&2
    exit 2
fi
root=$(dirname "$(readlink -f "$0")")/../..
. "$root/common/environment.sh"
data=$1 out=$2 workers=$3 gpus=${GPUS:-8}
read -r -a options <<<"${OPTIONS:-}"
launch=("$PYTHON" -m)
if [ "$gpus" -gt 1 ]; then
    launch=("$PYTHON" -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node "$gpus" --module)
fi
for arch in ${NETWORKS:-vgg16}; do
    batch=${BATCH:-256}
    case $arch in
        resnext101 | densenet121) batch=${BATCH:-128} ;;
    esac
    run() {
        local name=${arch}_b${batch}_w${workers}_g${gpus}_dali_fp32_$1
        shift
        mkdir -p "$out/$name"
        "${launch[@]}" iotwin.workloads.checkfreq --data "$data" --output "$out/$name" -a "$arch" -b "$batch" --workers "$workers" --noeval \
            --profile-cache "$out/profiles" "${options[@]}" "$@" >"$out/$name/stdout.log"
    }
    run cf --epochs 2 --chk-policy auto --dynamic
    run epoch_chk --epochs 1 --chk-policy epoch
    run iter_chk_baseline_persist --epochs 1 --chk-policy sync --chk-freq cached
done
