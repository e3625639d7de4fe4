#!/usr/bin/env bash
# Makes .venv, or brings it up to date with the checkout: what is up to date already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
stamps=$venv/.stamps

fail() { echo "setup: $*" >&2; exit 1; }

command -v cargo >/dev/null || fail "cargo is missing: install Rust (see rust-version in Cargo.toml)"
command -v "$python" >/dev/null || fail "$python is missing: install Python 3.9 or later, or name one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
    fail "$("$python" --version) is too old: Python 3.9 or later is needed; name another with PYTHON=..."

identity=$("$python" -c 'import sys; print(sys.version, sys.base_prefix)')
if [ ! -x $venv/bin/python ] || [ "$(cat $stamps/python 2>/dev/null)" != "$identity" ]; then
    echo "setup: making $venv with $("$python" --version)"
    rm -rf $venv
    "$python" -m venv $venv
    mkdir -p $stamps
    echo "$identity" >$stamps/python
fi
python=$venv/bin/python
# The build backend calls maturin, and maturin python, by name.
export PATH=$PWD/$venv/bin:$PATH
pip=("$python" -m pip --disable-pip-version-check install --quiet)

# up_to_date STAMP FILE...: whether the stamp is of these files as they are now.
up_to_date() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$(cat "${@:2}" | sha256sum)" ]; }
stamp() { cat "${@:2}" | sha256sum >"$stamps/$1"; }

if ! up_to_date build-tools ci/requirements-build.txt; then
    "${pip[@]}" -r ci/requirements-build.txt
    stamp build-tools ci/requirements-build.txt
fi

# The downloads run beside the build: one waits for the network, the other for the cores.
downloads=
if ! up_to_date requirements ci/requirements.txt; then
    echo "setup: installing $(grep -o '^[a-z_-]*' ci/requirements.txt | sort -u | paste -sd' ')"
    "${pip[@]}" --upgrade -r ci/requirements.txt &
    downloads=$!
fi
# A build that fails must not leave the downloads behind.
trap '[ -z "$downloads" ] || kill "$downloads" 2>/dev/null || true' EXIT

rm -rf build/wheels
mkdir -p build/wheels
export PYO3_PYTHON=$PWD/$python
wheel=build/wheels/$($python ci/foldcast_build.py build/wheels | tail -n 1)

if [ -n "$downloads" ]; then
    wait "$downloads" || { downloads=; fail "the installation of ci/requirements.txt failed (see above)"; }
    downloads=
    stamp requirements ci/requirements.txt
fi

if ! up_to_date foldcast "$wheel"; then
    "${pip[@]}" --no-deps --force-reinstall "$wheel"
    stamp foldcast "$wheel"
fi

if [ -f python/npu_bridge/pyproject.toml ]; then
    mapfile -t sources < <(git ls-files --cached --others --exclude-standard python/npu_bridge)
    if ! up_to_date npu_bridge "${sources[@]}"; then
        # A copy, so that the build leaves nothing in the checkout.
        rm -rf build/npu_bridge
        cp -r python/npu_bridge build/npu_bridge
        "${pip[@]}" --no-deps --force-reinstall ./build/npu_bridge
        stamp npu_bridge "${sources[@]}"
    fi
fi
echo "setup: $venv is up to date"
