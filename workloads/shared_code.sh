#!/usr/bin/env bash
# Put the code that the workloads share into the folder of each, as shared.tar: what lies outside a folder, docker build cannot see.
# setup.sh and build_image.sh call it. The same code gives the same bytes, so that docker builds nothing anew.
set -euo pipefail
cd "$(dirname "$0")/.."
packed=$(mktemp)
trap 'rm -f "$packed"' EXIT
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r -cf "$packed" \
    common/*.py common/*/*.py datagen/*.py datagen/*/*.py workloads/*.py workloads/{common,state,policies,models}/*.py
for dockerfile in workloads/*/Dockerfile; do
    folder=$(dirname "$dockerfile")
    cmp --silent "$packed" "$folder/shared.tar" && continue
    partial=$(mktemp "$folder/shared.tar.XXXXXX")
    cp "$packed" "$partial"
    chmod 644 "$partial"
    mv "$partial" "$folder/shared.tar"
done
