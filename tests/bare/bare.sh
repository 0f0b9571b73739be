#!/usr/bin/env bash
# Prove on a machine on which nothing was installed that the README is true: make bare [RELEASE=trixie]
#
# Makes a Debian (or Ubuntu) of the machine's own release, or of RELEASE, with Python and make and nothing else, enters it in a mount
# namespace of its own, without tracefs and debugfs, and runs check.sh there on a copy of this checkout. Packages come through the
# machine's own configuration of apt and pip. Needs root and debootstrap. All mounts end with the namespace, however this ends.
# What was fetched is kept in BARE_CACHE (default ~/.cache/iotwin) for the next time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
fail() { echo "make bare: $1" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || fail "debootstrap and mounting need root; call with sudo"
for program in debootstrap unshare pivot_root flock apt-get python3; do
    command -v "$program" >/dev/null || fail "$program is not installed; install it, for example with: apt-get install $program"
done
targets() { apt-get indextargets --format '$(ORIGIN) $(SITE) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' | grep -E '^(Debian|Ubuntu) '; }
targets >/dev/null || { apt-get update -qq && targets >/dev/null; } || fail "apt knows no Debian or Ubuntu mirror here"
read -r _ mirror own_release _ < <(targets) || true
release=${RELEASE:-$own_release}
cache=${BARE_CACHE:-${HOME:-/root}/.cache/iotwin}
root=$cache/bare-$release
system=$cache/bare-$release.tar
mkdir -p "$cache/debs-$release/partial"
exec 9>"$cache/bare-$release.lock"
flock 9
began=$SECONDS
# A run before this one may have been killed. Nothing is ever mounted there outside the namespace.
rm -rf --one-file-system "$root" "$root.log"
trap 'rm -rf --one-file-system "$root"' EXIT

if [ ! -f "$system" ]; then
    echo "bare: debootstrap $release"
    debootstrap --variant=minbase --include=python3,make "$release" "$root" "$mirror" >"$root.log" 2>&1 ||
        fail "debootstrap of $release failed: $(tail -n 1 "$root.log")"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -cf "$system.partial" .
    mv "$system.partial" "$system"
else
    mkdir "$root"
    tar -C "$root" -xf "$system"
fi

# ---- the machine's own ways to packages, and nothing else of it ----
targets | while read -r _ site codename component; do
    echo "deb $site ${codename/#$own_release/$release} $component"
done >"$root/etc/apt/sources.list"
apt-config dump | grep '^Acquire::' | grep -v '^Acquire::\(Changelogs\|IndexTargets\)' >"$root/etc/apt/apt.conf.d/machine" || true
cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
python3 "$here/pip_settings.py" "$root" >"$root/etc/binds"
targets | sed -n 's,^[^ ]* file:/*\([^ ]*\) .*,/\1,p' >>"$root/etc/binds"
# The throw-away disk need not survive a power cut, and documents are not looked at.
printf '%s\n' force-unsafe-io 'path-exclude=/usr/share/doc/*' 'path-exclude=/usr/share/man/*' >"$root/etc/dpkg/dpkg.cfg.d/bare"

mkdir -p "$root/srv/iotwin"
git -C "$checkout" ls-files -z | tar -C "$checkout" --null --files-from=- --ignore-failed-read -c | tar -C "$root/srv/iotwin" -x --no-same-owner

environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CI=true "BARE_TESTS=${BARE_TESTS:-yes}")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [ -n "${!name:-}" ]; then environment+=("$name=${!name}"); fi
done
status=0
# In the background, so that this script hears of an interrupt at once and passes it on.
unshare --mount --propagation private "$here/enter.sh" "$root" "$cache/debs-$release" \
    env -i --default-signal=INT,QUIT "${environment[@]}" timeout --kill-after=10 1500 /srv/iotwin/tests/bare/check.sh </dev/null 9>&- &
inside=$!
trap 'kill $inside 2>/dev/null; wait $inside || true; exit 130' INT TERM HUP
wait $inside || status=$?
[ "$status" -eq 0 ] || fail "on a bare $release: failed with status $status; what failed is told above"
echo "bare: $release holds, in $((SECONDS - began)) s"
