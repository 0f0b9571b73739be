# Sourced by the scripts of this checkout, which set `root` to its folder: leaves an iotwin on PATH and its interpreter in PYTHON.
#
# An iotwin on PATH, as of an activated environment, comes before that of the checkout's .venv. PYTHON may be set before.
if ! command -v iotwin >/dev/null 2>&1; then
    if [ ! -x "$root/.venv/bin/iotwin" ] && [ -z "${PYTHON:-}" ]; then
        echo "$0: iotwin is not installed; install it with: $root/setup.sh" >&2
        exit 1
    fi
    PATH=$root/.venv/bin:$PATH
    export PATH
fi
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$(dirname "$(readlink -f "$(command -v iotwin)")")/python
    [ -x "$PYTHON" ] || PYTHON=python3
fi
