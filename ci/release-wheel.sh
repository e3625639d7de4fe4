#!/usr/bin/env bash
# Makes the wheel that is given away, dist/foldcast-*-manylinux_2_28_*.whl, and checks it: the glibc and the Python that
# its three binaries need, and that it works when it is installed.
#
# Rust's standard library takes whatever symbol versions the linker finds, so what `make setup` builds needs the glibc of
# the machine at hand. Here zig, a linker with tables of every glibc, links against 2.28; it comes from the Python
# registry into build/release. Needs .venv, made by `make setup`, for the last check.
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
tools=build/release
if [ "$(cat $tools/.requirements 2>/dev/null)" != "$(cat ci/requirements-release.txt)" ]; then
    rm -rf $tools
    "${PYTHON:-python3}" -m venv $tools
    $tools/bin/python -m pip --disable-pip-version-check install --quiet -r ci/requirements-release.txt
    cp ci/requirements-release.txt $tools/.requirements
fi

rm -rf dist
mkdir -p dist
# What `foldcast info` says of where it comes from. With FOLDCAST_REVISION empty it says nothing, and what is built already need not
# be built anew for each commit.
if [ -z "${FOLDCAST_REVISION+set}" ]; then
    FOLDCAST_REVISION=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
    [ -z "$(git status --porcelain 2>/dev/null)" ] || FOLDCAST_REVISION+=-modified
fi
export FOLDCAST_REVISION
# The caches of zig stay where everything else that is built is.
wheel=dist/$(PATH=$PWD/$tools/bin:$PATH ZIG_GLOBAL_CACHE_DIR=$PWD/$tools/cache FOLDCAST_BUILD_GLIBC=$glibc \
    $tools/bin/python ci/foldcast_build.py dist | tail -n 1)
# The next `make setup` stages its own.
rm -rf build/foldcast.data
[[ $wheel == *-cp37-abi3-manylinux_2_28_*.whl ]] || { echo "release: $wheel is not tagged cp37-abi3-manylinux_2_28" >&2; exit 1; }

$tools/bin/python ci/check_glibc.py --limit $glibc "$wheel"
# A check that cannot fail is none: the wheel needs more than the first glibc of 64 bits has.
if $tools/bin/python ci/check_glibc.py --limit 2.2.5 "$wheel" >/dev/null; then
    echo "release: ci/check_glibc.py let newer symbols pass" >&2
    exit 1
fi
$tools/bin/abi3audit --strict "$wheel"

ci/smoke-test.sh "$wheel"
echo "release: $wheel"
