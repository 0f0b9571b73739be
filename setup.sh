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
# What a user without root could not install, root tries again.
for done_mode in "$mode" test; do
    stamp=$(cat ".setup/$done_mode" 2>/dev/null || true)
    if [ -x .venv/bin/iotwin ] && { [ "$stamp" = "$current" ] || { [ "$stamp" = "$current incomplete" ] && [ "$(id -u)" != 0 ]; }; }; then
        exit 0
    fi
done

say() { echo "setup: $*" >&2; }

python=
for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then say "Python 3.11 or newer is needed and was not found; install it and call again"; exit 1; fi

# ---- system packages ----
# Each is asked for by what is used of it: a part that another package brought along must not hide what is missing.
PATH=$PATH:/sbin:/usr/sbin # not on every user's, and ldconfig and bpftool are there
makes_venvs() { "$1" -c "import ensurepip" 2>/dev/null; }
has_program() { command -v "$1" >/dev/null; }
has_library() { { ldconfig -p 2>/dev/null || true; } | grep -q "$1"; }
system_python_has() { /usr/bin/python3 -c "import $1" 2>/dev/null; }
compiles_c() { cc -x c -static -pthread -o /dev/null - <<<'#include <pthread.h>
int main(void) { return 0; }' 2>/dev/null; }
has_static_busybox() { has_program busybox && ! head -c 4096 "$(command -v busybox)" | grep -qa /ld-linux; }
has_open_mpi() { [[ $(mpirun --version 2>/dev/null) == *"Open MPI"* ]]; }

packages=() checks=() losses=()
need() { # package, what is lost without it, check and its argument
    packages+=("$1") losses+=("$2") checks+=("$3 ${4-}")
}
need python3-venv "there is no virtual environment to install into" makes_venvs "$python"
need clang "the eBPF programs cannot be compiled; tracing falls back to strace" has_program clang
need libbpf1 "eBPF programs cannot be loaded; tracing falls back to strace" has_library libbpf.so.1
need strace "there is no way to trace without eBPF" has_program strace
if [ "$mode" = test ]; then
    need gcc "tests that compile a C program are skipped" compiles_c
    need libc6-dev "tests that compile a C program are skipped" compiles_c
    need fio "generation and emulation are not held against fio" has_program fio
    need openmpi-bin "tests of several nodes by MPI are skipped" has_open_mpi
    need openssh-server "tests of several hosts by ssh are skipped" has_program sshd
    need munge "tests of several nodes by SLURM are skipped" has_program munged
    need slurm-client "tests of several nodes by SLURM are skipped" has_program srun
    need slurmctld "tests of several nodes by SLURM are skipped" has_program slurmctld
    need slurmd "tests of several nodes by SLURM are skipped" has_program slurmd
    need docker.io "tests in containers are skipped" has_program dockerd
    need docker-cli "tests in containers are skipped" has_program docker # of its own since Debian 13, before that in docker.io
    need debootstrap "the tests' base image cannot be built, and tests of the workloads' images are skipped" has_program debootstrap
    need busybox-static "tests in containers are skipped" has_static_busybox
    need bpftrace "the bpftrace backend is not tested" has_program bpftrace
    need python3-bpfcc "the bcc backend is not tested" system_python_has bcc
    need xfsprogs "traces and data sets on xfs are not tested" has_program mkfs.xfs
    need bpftool "offsets in the kernel's structures are not held against bpftool's" has_program bpftool
    need chromium-driver "the report's browser tests are skipped" has_program chromedriver
    need chromium "the report's browser tests are skipped" has_program chromium
fi

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
apt_install() { # packages...
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}
try_apt() { # packages..., all at once, as that is faster; else each for itself, as one alone may not be to be had
    local package known=()
    command -v apt-get >/dev/null || return 1
    say "installing system packages with apt"
    "${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || return 1
    for package in "$@"; do
        if [ -n "$(apt-cache madison "$package" 2>/dev/null)" ]; then known+=("$package"); fi
    done
    [ "${#known[@]}" -gt 0 ] || return 1
    apt_install "${known[@]}" && return
    for package in "${known[@]}"; do apt_install "$package" || true; done
}
missing=()
for i in "${!packages[@]}"; do ${checks[i]} || missing+=("${packages[i]}"); done
apt=
if [ "${#missing[@]}" -gt 0 ]; then
    # Meanwhile, pip installs: both wait for the network most of the time.
    try_apt "${missing[@]}" &
    apt=$!
    makes_venvs "$python" || wait "$apt" || true
fi

# ---- Python ----
if [ ! -x .venv/bin/pip ]; then
    rm -rf .venv
    "$python" -m venv .venv >/dev/null || { say "could not make a virtual environment"; exit 1; }
fi
# pip would compile every module, of which most are never imported.
install() { .venv/bin/pip install --quiet --disable-pip-version-check --no-compile --constraint requirements.lock "$@"; }
say "installing Python packages into .venv"
extras=hdf5,containers,sql
if [ "$mode" = test ]; then extras=test; fi
install --editable ".[$extras]" || { say "could not install the Python packages; is a package index reachable?"; exit 1; }
# By name and version: pip then takes a CPU build where one is offered, instead of gigabytes of CUDA.
install "$(grep '^torch==' requirements.lock)" || say "could not get torch: the real workloads, and with them make run, do not work"
if [ "$mode" = test ]; then
    install "$(grep '^tensorflow_cpu==' requirements.lock)" || say "could not get TensorFlow: tests of bert's training are skipped"
    install "$(grep '^mpi4py==' requirements.lock)" || say "could not get mpi4py: tests of several nodes by MPI are skipped"
fi
complete=
if [ "$apt" ]; then
    wait "$apt" || true
    hash -r
    for i in "${!packages[@]}"; do
        ${checks[i]} || { say "could not get ${packages[i]}: ${losses[i]}"; complete=" incomplete"; }
    done
fi
# What commands import is compiled now, as their users may not write here; the rest is compiled when it is first imported.
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "import pandas, pyarrow.dataset, matplotlib.pyplot, h5py, duckdb, docker, torch._dynamo" \
    >/dev/null 2>&1 || true
.venv/bin/python -m iotwin.tracing_tools.probes >/dev/null || say "tracing falls back to strace"
mkdir -p .setup
echo "$current$complete" >".setup/$mode"
