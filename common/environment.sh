# Scripts of this checkout source this file, with `root` set to the checkout. It puts iotwin on PATH, its interpreter in PYTHON.
#
# An iotwin that is on PATH already, as in an activated environment, is preferred to the checkout's .venv. A set PYTHON stays.
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
