#!/usr/bin/env bash
# Make ROOT the root of this mount namespace and run a command there: enter.sh ROOT DEBS COMMAND...
#
# Called by bare.sh in a namespace of its own. The processes, the devices and the control groups are the machine's; of /sys there is a fresh
# one, so without tracefs and debugfs.
set -euo pipefail
root=$1 debs=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount --bind "$debs" "$root/var/cache/apt/archives"
while read -r folder; do
    mkdir -p "$root$folder"
    mount --bind -o ro "$folder" "$root$folder"
done <"$root/etc/binds"
mkdir "$root/old"
cd "$root"
pivot_root . old
umount --lazy /old
rmdir /old
exec "$@"
