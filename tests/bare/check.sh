#!/usr/bin/env bash
# What must hold on a machine with Python and make and nothing else. bare.sh runs it inside such a one, as root, in /srv/iotwin.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH" COLUMNS=160
say() { echo "bare: [$SECONDS s] $*"; }
fail() { echo "bare: $*" >&2; exit 1; }
set_up() { # mode; fails when anything could not be had
    ./setup.sh "$1" 2>&1 | tee /tmp/setup.log
    if grep -q 'could not\|falls back' /tmp/setup.log; then fail "./setup.sh $1 did not get everything"; fi
    say "./setup.sh $1 got everything"
}
doctor() { # names whose answer may be no, separated by commas; all others must be yes
    iotwin doctor --json | python -c '
import json, sys
no = {row["name"]: row["reason"] for row in json.load(sys.stdin)["checks"] if row["reason"]}
for name, reason in no.items():
    print(f"  no {name}: {reason}")
wrong = no.keys() - set(sys.argv[1].split(","))
sys.exit(f"bare: doctor says no where it should say yes: {wrong}" if wrong else 0)' "$1"
    say "doctor says yes to the rest"
}
whole_loop() { # backend; in an empty directory of the caller: generate, trace, fit, emulate, compare
    local overall
    cp "$checkout/docs/train.py" .
    iotwin generate unet3d -o data --samples 24 --scale 0.1 --quiet
    iotwin trace -o real.trace --quiet --backend "$1" -- python train.py --data data --epochs 2 >real.log
    iotwin fit real.trace -o twin.yaml --quiet
    iotwin trace -o twin.trace --quiet --backend "$1" -- iotwin emulate twin.yaml >twin.log
    overall=$(iotwin compare real.trace twin.trace --json | python -c 'import json, sys; print(json.load(sys.stdin)["overall"])')
    say "by $1 as $(id -un): the twin is $overall like the job"
    # Busy machines blur times; a twin that read other bytes or another order is well below.
    python -c 'import sys; sys.exit(float(sys.argv[1]) < 0.8)' "$overall" || fail "the twin is not like the job"
}

checkout=$PWD
if grep -E ' (tracefs|debugfs) ' /proc/mounts; then fail "this is no bare machine"; fi

say "README: make run's set-up"
set_up run
later=bcc,bpftrace,docker,"GPU samples",tensorflow,gpu,polars,dask,s3,dtr,mpi,pipedream
doctor "$later"
mkdir /srv/root
(cd /srv/root && whole_loop auto)

say "the same without root"
useradd --create-home user
export -f whole_loop say fail
export checkout
for backend in strace preload; do
    runuser -u user -- bash -euo pipefail -c "mkdir ~/$backend && cd ~/$backend && SECONDS=$SECONDS whole_loop $backend"
done
runuser -u user -- bash -c "iotwin doctor" || fail "doctor sees no way to trace without root"
runuser -u user -- ./setup.sh run || fail "set-up that has nothing to do fails without root"
if [ "$BARE_TESTS" = no ]; then exit 0; fi

say "README: make test's set-up"
set_up test
dockerd --bridge=none --iptables=false --ip6tables=false >/tmp/dockerd.log 2>&1 &
engine=$!
trap 'kill $engine 2>/dev/null; wait $engine || true' EXIT
for _ in $(seq 300); do docker version >/dev/null 2>&1 && break || sleep 0.2; done
doctor "GPU samples"
say "tests of every backend, and of a container: what these packages of this machine must do; make test has all others"
python -m pytest -rs tests/tracing_tools/backends/test_backends.py::test_backends_agree_row_by_row \
    tests/tracing_tools/targets/test_targets.py::test_bcc_sees_a_container_and_not_its_runtime
say "done"
