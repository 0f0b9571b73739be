#!/usr/bin/env bash
# The name that trace.sh had in the paper artifact.
exec "$(dirname "$0")/trace.sh" "$@"
