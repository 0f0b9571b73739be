#!/usr/bin/env bash
# Build a base image for the workloads from Debian packages, on a machine without access to an image registry.
#
#   base_image.sh TAG [PYTHON PACKAGE...]      for example: base_image.sh iotwin-base 'torch>=2.2' 'numpy>=1.26' 'msgspec>=0.18'
#
# Needs root, debootstrap and docker. The image has this machine's Debian release, from this machine's mirror. The pip of PYTHON
# (default python3) downloads the Python packages here, because `docker build` may have no network. So this machine and the image
# must have the same Python version. Versions of packages are those of requirements.lock. BASE_CACHE (default ~/.cache/iotwin)
# keeps the Debian part for the next build.
set -euo pipefail
fail() { echo "$0: $1" >&2; exit 1; }

[ "$#" -ge 1 ] || { echo "usage: $0 TAG [PYTHON PACKAGE...]" >&2; exit 2; }
tag=$1
shift
[ "$(id -u)" -eq 0 ] || fail "debootstrap needs root; call with sudo"
for program in debootstrap docker apt-get; do
    command -v "$program" >/dev/null || fail "$program is not installed; install it with: apt-get install $program"
done
lock=$(cd "$(dirname "$0")/.." && pwd)/requirements.lock
python=${PYTHON:-python3}
cache=${BASE_CACHE:-${HOME:-/root}/.cache/iotwin}
read -r mirror suite < <(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | head -n 1) || true
[ -n "${mirror:-}" ] && [ -n "${suite:-}" ] || fail "apt knows no Debian mirror here; run apt-get update first"
mkdir -p "$cache"
work=$(mktemp -d "$cache/base.XXXXXX")
trap 'rm -rf "$work"' EXIT

system=$cache/debian-$suite.tar
if [ ! -f "$system" ]; then
    echo "$0: making a minimal Debian $suite, a minute or two; it is kept in $cache" >&2
    debootstrap --variant=minbase --include=python3,python3-pip,python-is-python3,ca-certificates "$suite" "$work/root" "$mirror" \
        >"$work/log" || fail "debootstrap failed: $(tail -n 1 "$work/log")"
    rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
    tar -C "$work/root" -cf "$work/system.tar" .
    mv "$work/system.tar" "$system"
    rm -rf "$work/root"
fi
mkdir -p "$work/root"
tar -C "$work/root" -xf "$system"
if [ "$#" -gt 0 ]; then
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    [ -e "$work/root/usr/bin/$version" ] || fail "$suite has no $version, which $python is; set PYTHON to one of its version"
    echo "$0: fetching $* for $version" >&2
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --constraint "$lock" \
        --target "$work/root/usr/local/lib/$version/dist-packages" "$@"
fi
echo "$0: importing the image" >&2
tar -C "$work/root" -c . | docker import --change 'ENV PIP_BREAK_SYSTEM_PACKAGES=1' \
    --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$tag" >/dev/null
echo "$tag"
