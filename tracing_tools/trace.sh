#!/usr/bin/env bash
# Trace containerized training jobs: trace.sh -w WORKLOAD -l LAUNCH_SCRIPT [OPTION...] [-- ARGUMENTS OF THE LAUNCH SCRIPT...]
#
#   -w, --workload NAME          bert, dlrm, unet3d or dlio; explore: trace everything until Ctrl-C, without a launch script
#   -l, --launch-script FILE     is called with NUM_GPUS CONTAINER LOGGING_DIR and the arguments after --
#   -c, --container NAME         container that FILE starts (default train_WORKLOAD; with _1, _2, ... for job 1, 2, ...)
#   -n, --num-gpus N             GPUs of each job (default 1); job i gets GPUs i*N to i*N+N-1 as CUDA_VISIBLE_DEVICES
#   -j, --num-jobs N             jobs to run at once, each with its own trace (default 1)
#   -o, --output-dir DIR         directory for results (default ./trace_results)
#   -e, --experiment-name NAME   directory within DIR (default experiment)
#   -s, --strace                 record every group of operations (iotwin trace --detail all)
#   --drop-caches                drop the machine's page cache first; needs root
#
# Writes OUTPUT_DIR/EXPERIMENT_NAME/WORKLOAD[_JOB].trace and WORKLOAD[_JOB].logs.
set -euo pipefail

# A script that starts this in the background makes it ignore SIGINT, which bash cannot undo.
if [ -n "$(trap -p INT)" ] && env --default-signal=INT true 2>/dev/null; then
    exec env --default-signal=INT bash "$0" "$@"
fi

root=$(dirname "$(readlink -f "$0")")/..
. "$root/common/environment.sh"
fail() { echo "trace.sh: $1" >&2; exit "${2:-1}"; }

workload= launch= container= gpus=1 jobs=1 output=./trace_results experiment=experiment drop=
detail=()
while [ "$#" -gt 0 ]; do
    case $1 in
        --) shift; break ;;
        -s | --strace) detail=(--detail all); shift; continue ;;
        --drop-caches) drop=yes; shift; continue ;;
        -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; exit 0 ;;
        -w | --workload | -l | --launch-script | -c | --container | -n | --num-gpus | -j | --num-jobs | -o | --output-dir | \
            -e | --experiment-name) [ "$#" -gt 1 ] || fail "$1 needs a value" 2 ;;
        *) fail "unknown option '$1'; see: trace.sh --help" 2 ;;
    esac
    case $1 in
        -w | --workload) workload=$2 ;;
        -l | --launch-script) launch=$2 ;;
        -c | --container) container=$2 ;;
        -n | --num-gpus) gpus=$2 ;;
        -j | --num-jobs) jobs=$2 ;;
        -o | --output-dir) output=$2 ;;
        -e | --experiment-name) experiment=$2 ;;
    esac
    shift 2
done

case $workload in
    bert | dlrm | unet3d | dlio | explore) ;;
    *) fail "-w must be bert, dlrm, unet3d, dlio or explore, not '$workload'" 2 ;;
esac
for number in "$gpus" "$jobs"; do
    case $number in '' | *[!0-9]*) fail "-n and -j take numbers, not '$number'" 2 ;; esac
done
[ "$workload" = explore ] || [ -f "$launch" ] || fail "-l must name the launch script; there is no file '$launch'" 2
directory=$output/$experiment
mkdir -p "$directory"

if [ -n "$drop" ]; then
    [ "$(id -u)" = 0 ] || fail "--drop-caches needs root; run under sudo or leave it out"
    sync
    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || fail "the page cache cannot be dropped here: /proc/sys/vm/drop_caches is not writable"
fi

if [ "$workload" = explore ]; then
    exec iotwin trace -o "$directory/explore.trace" --workload explore "${detail[@]}" --all
fi

pids=()
# The tracers ignore SIGINT, as all background processes of bash do. On SIGTERM they end their containers, then themselves.
trap 'for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done' INT TERM HUP
for ((job = 0; job < jobs; job++)); do
    suffix=; [ "$job" = 0 ] || suffix=_$job
    name=${container:-train_$workload}$suffix
    devices=$(seq -s, $((job * gpus)) $((job * gpus + gpus - 1)))
    CUDA_VISIBLE_DEVICES=${devices%,} iotwin trace -o "$directory/$workload$suffix.trace" --workload "$workload" "${detail[@]}" \
        --container "$name" -- bash "$launch" "$gpus" "$name" "$directory/$workload$suffix.logs" "$@" &
    pids+=("$!")
done

status=0
for pid in "${pids[@]}"; do
    while true; do
        wait "$pid" && code=0 || code=$?
        kill -0 "$pid" 2>/dev/null || break # a signal to this script ends a wait early
    done
    [ "$code" = 0 ] || status=$code
done
exit "$status"
