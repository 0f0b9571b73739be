#!/usr/bin/env bash
# Installs what iotwin needs: ./setup.sh run | test. Safe to call again: it returns at once when nothing has changed.
#
# Python packages go into .venv, at the versions of requirements.lock. System packages are installed by apt where that is allowed.
# What cannot be had is said in one line each, with what is lost without it; only Python itself is indispensable.
set -euo pipefail
cd "$(dirname "$0")"
mode=${1:-run}
case $mode in run | test) ;; *) echo "usage: ./setup.sh run|test" >&2; exit 2 ;; esac

# For docker build of the workloads' folders; at once, and at every call, as it follows the code.
workloads/shared_code.sh

inputs="setup.sh requirements.lock pyproject.toml $(echo tracing_tools/probes/*.bpf.c tracing_tools/probes/*.h)"
# shellcheck disable=SC2086 # the list is meant to split
current=$(cat $inputs | sha256sum)
for done_mode in "$mode" test; do
    if [ -x .venv/bin/iotwin ] && [ "$(cat ".setup/$done_mode" 2>/dev/null)" = "$current" ]; then exit 0; fi
done

say() { echo "setup: $*" >&2; }

# ---- system packages: program or library to look for, package, what is lost without it ----
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
apt_ready=
try_apt() { # packages...
    command -v apt-get >/dev/null || return 1
    if [ -z "$apt_ready" ]; then
        apt_ready=no
        say "installing system packages with apt"
        if "${as_root[@]}" apt-get update -qq >/dev/null 2>&1; then apt_ready=yes; fi
    fi
    [ $apt_ready = yes ] && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}
has_library() { # name
    # ldconfig is not on every user's PATH.
    { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true; } | grep -q "$1"
}
need() { # program-or-lib.so package what-is-lost
    case $1 in *.so*) has_library "$1" && return ;; *) command -v "$1" >/dev/null && return ;; esac
    try_apt "$2" || say "could not get $2: $3"
}
need clang clang "the eBPF programs cannot be compiled; tracing falls back to strace"
need libbpf.so.1 libbpf1 "eBPF programs cannot be loaded; tracing falls back to strace"
need strace strace "there is no way to trace without eBPF"
if [ "$mode" = test ]; then
    need cc gcc "tests that compile a C program are skipped"
    need fio fio "generation and emulation are not held against fio"
    need mpirun openmpi-bin "tests of several nodes by MPI are skipped"
    need dockerd docker.io "tests in containers are skipped"
    need debootstrap debootstrap "the tests' base image cannot be built, and tests of the workloads' images are skipped"
    need busybox busybox-static "tests in containers are skipped"
    need bpftrace bpftrace "the bpftrace backend is not tested"
    need libbcc.so.0 python3-bpfcc "the bcc backend is not tested"
    need chromedriver chromium-driver "the report's browser tests are skipped"
    need chromium chromium "the report's browser tests are skipped"
fi

# ---- Python ----
python=
for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then say "Python 3.11 or newer is needed and was not found; install it and call again"; exit 1; fi
if [ ! -x .venv/bin/pip ]; then
    rm -rf .venv
    if ! "$python" -m venv .venv >/dev/null 2>&1; then
        try_apt python3-venv || { say "could not make a virtual environment; install the package python3-venv"; exit 1; }
        "$python" -m venv .venv
    fi
fi
install() { .venv/bin/pip install --quiet --disable-pip-version-check --constraint requirements.lock "$@"; }
say "installing Python packages into .venv"
extras=
if [ "$mode" = test ]; then extras="[test]"; fi
install --editable ".$extras" || { say "could not install the Python packages; is a package index reachable?"; exit 1; }
# By name and version: pip then takes a CPU build where one is offered, instead of gigabytes of CUDA.
install "$(grep '^torch==' requirements.lock)" || say "could not get torch: the real workloads, and with them make run, do not work"
if [ "$mode" = test ]; then
    install "$(grep '^tensorflow_cpu==' requirements.lock)" || say "could not get TensorFlow: tests of bert's training are skipped"
    install "$(grep '^mpi4py==' requirements.lock)" || say "could not get mpi4py: tests of several nodes by MPI are skipped"
fi

.venv/bin/python -m tracing_tools.probes >/dev/null || say "tracing falls back to strace"
mkdir -p .setup
echo "$current" >".setup/$mode"
