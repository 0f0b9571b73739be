#!/usr/bin/env bash
# Draws all zooms of every trace under a directory; raw recordings of the paper artifact become traces first.
#   generate_timeline_plots.sh [DATA_DIR [PLOTS_DIR]]       (timeline_data, plots)
# DATA_DIR may be what iotwin run wrote: its traces are cells/NAME/trace.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=${1:-timeline_data}
plots=${2:-plots}
root=$(dirname "$here")
. "$root/common/environment.sh"
[ -d "$data" ] || { echo "generate_timeline_plots.sh: $data is not a directory; give the one that holds the traces" >&2; exit 2; }

workload_of() {
    local name
    for name in unet3d imseg bert dlrm; do
        case "$1" in *"$name"*) echo "$name"; return ;; esac
    done
    echo unet3d
}

while IFS= read -r -d '' found; do
    raw=$(dirname "$found")
    [ -e "$raw.trace/manifest.json" ] || "$PYTHON" "$here/preprocess_traces.py" "$raw" "$(workload_of "$raw")" ${TIMEZONE:+--timezone "$TIMEZONE"}
done < <(find "$data" -mindepth 2 -maxdepth 4 -name trace_read.out -print0 | sort -z)

count=0
while IFS= read -r -d '' found; do
    trace=$(dirname "$found") # a data set has a manifest.json, too, but no events
    name=${trace#"$data"/}
    name=${name%.trace}
    "$PYTHON" "$here/plot_timelines.py" "$trace" "$(workload_of "$trace")" "${name//\//_}" -a -o "$plots"
    count=$((count + 1))
done < <(find "$data" -mindepth 2 -maxdepth 4 -name events.parquet -print0 | sort -z)
[ "$count" -gt 0 ] || { echo "generate_timeline_plots.sh: $data holds no trace" >&2; exit 1; }
