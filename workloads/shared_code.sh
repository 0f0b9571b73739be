#!/usr/bin/env bash
# Pack the code that all workloads share into shared.tar in each workload's folder, because `docker build` reads that folder only.
# setup.sh and build_image.sh call this script. Equal code gives equal bytes, so that docker can use its cache.
set -euo pipefail
cd "$(dirname "$0")/.."
packed=$(mktemp)
trap 'rm -f "$packed"' EXIT
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r -cf "$packed" \
    iotwin/__init__.py iotwin/{common,datagen}/*.py iotwin/{common,datagen}/*/*.py \
    iotwin/workloads/*.py iotwin/workloads/{common,state,policies,models}/*.py
for dockerfile in workloads/*/Dockerfile; do
    folder=$(dirname "$dockerfile")
    cmp --silent "$packed" "$folder/shared.tar" && continue
    partial=$(mktemp "$folder/shared.tar.XXXXXX")
    cp "$packed" "$partial"
    chmod 644 "$partial"
    mv "$partial" "$folder/shared.tar"
done
