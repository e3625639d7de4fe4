#!/usr/bin/env bash
# The TensorFlow tests on the releases that scripts in the wild use, each in an environment of its own under build/matrix.
#
#   ci/tensorflow-matrix.sh            all releases, all tests
#   ci/tensorflow-matrix.sh --short    1.15 and 2.6, the tests by which releases differ most
#   ci/tensorflow-matrix.sh 2.6 1.15   these releases
#   ci/tensorflow-matrix.sh --install [...]   only make the environments, which needs neither a build nor .venv
#
# A release whose Python is not on this machine (pyenv's, or pythonX.Y on the PATH) is skipped, loudly; with
# MATRIX_MUST=1 that is a failure. The wheel is the newest that `make release` or `make setup` has made; MATRIX_WHEEL
# names another.
set -euo pipefail
cd "$(dirname "$0")/.."

# release, Python, requirements. The newest is .venv's.
releases=(
    "1.15|3.7|tensorflow==1.15.5 protobuf<3.21 numpy<1.19"
    "2.6|3.9|tensorflow==2.6.5 keras==2.6.* protobuf<3.21 numpy<1.20"
    "2.15|3.11|tensorflow-cpu==2.15.1 ml_dtypes"
    "newest||"
)
# Patterns in tests/python; a new file that matches one is run by itself.
all_tests=('test_tensorflow_*.py' 'test_npu_bridge_*.py' test_product_tensorflow.py)
short_tests=(test_tensorflow_{mechanics,arguments,fusion,synchronous,old}.py 'test_npu_bridge_*.py')
# Of the longest tests, one for what releases differ in; the rest is left to the long form. So is what uses no TensorFlow.
short_nodes=(test_tensorflow_ranks.py::test_orders_that_differ_between_ranks)
short_without=(
    test_tensorflow_fusion.py::test_equal_bits_fused_and_unfused_on_real_ranks
    test_npu_bridge_{manage,split}.py
)
short_releases=(1.15 2.6)

short=
install=
wanted=()
for argument in "$@"; do
    case $argument in
        --short) short=1 ;;
        --install) install=1 ;;
        -*) echo "matrix: unknown option $argument" >&2; exit 2 ;;
        *) wanted+=("$argument") ;;
    esac
done
if [ -n "$short" ] && [ ${#wanted[@]} -eq 0 ]; then wanted=("${short_releases[@]}"); fi
for name in "${wanted[@]}"; do
    [[ "$(printf '%s\n' "${releases[@]}")" =~ (^|$'\n')"$name|" ]] || { echo "matrix: no release $name" >&2; exit 2; }
done

# interpreter VERSION: the newest of pyenv's of that version, else the one on the PATH.
interpreter() {
    local found
    found=$(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1.*/bin/python" | sort -V | tail -n 1) || true
    [ -n "$found" ] && echo "$found" && return
    command -v "python$1" || true
}

# environment RELEASE BASE REQUIREMENTS: makes the release's environment, without Foldcast, or brings it up to date.
environment() {
    local base=$2 venv=build/matrix/$1 packages
    read -ra packages <<<"$3"
    if [ "$(cat "$venv/.requirements" 2>/dev/null)" != "$base $3" ]; then
        rm -rf "$venv"
        "$base" -m venv "$venv"
        "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "${packages[@]}" pytest
        echo "$base $3" >"$venv/.requirements"
    fi
}

# tests: arguments of pytest, one a line.
tests() {
    local pattern
    if [ -n "$short" ]; then
        for pattern in "${short_tests[@]}"; do compgen -G "tests/python/$pattern"; done
        printf 'tests/python/%s\n' "${short_nodes[@]}"
        printf -- '--deselect=tests/python/%s\n' "${short_without[@]}"
    else
        for pattern in "${all_tests[@]}"; do compgen -G "tests/python/$pattern"; done
    fi
}

# Nothing else is done with --install.
if [ -z "$install" ]; then
    wheel=${MATRIX_WHEEL:-$(ls -t dist/foldcast-*.whl build/wheels/foldcast-*.whl 2>/dev/null | head -n 1 || true)}
    [ -n "$wheel" ] && [ -x .venv/bin/python ] || { echo "matrix: no wheel or no .venv: run make setup" >&2; exit 1; }
    # npu_bridge is Python only: one wheel for all. A copy, so that the build leaves nothing in the checkout.
    rm -rf build/matrix/npu_bridge
    mkdir -p build/matrix
    cp -r python/npu_bridge build/matrix/npu_bridge
    .venv/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps -w build/matrix/npu_bridge/wheels \
        ./build/matrix/npu_bridge
    bridge=$(compgen -G 'build/matrix/npu_bridge/wheels/*.whl')
fi

mapfile -t chosen < <(tests)
skipped=()
failed=()
for entry in "${releases[@]}"; do
    IFS='|' read -r release version requirements <<<"$entry"
    if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $release "* ]]; then continue; fi
    if [ "$release" = newest ]; then
        [ -z "$install" ] || continue
        python=.venv/bin/python
    else
        base=$(interpreter "$version")
        if [ -z "$base" ]; then
            echo "matrix: SKIPPED TensorFlow $release: there is no Python $version on this machine" >&2
            skipped+=("$release")
            continue
        fi
        environment "$release" "$base" "$requirements"
        [ -z "$install" ] || continue
        python=build/matrix/$release/bin/python
        "$python" -m pip --disable-pip-version-check install --quiet --no-deps --force-reinstall "$wheel" "$bridge"
    fi
    echo "matrix: TensorFlow $release, $("$python" --version), $wheel"
    # 1.15 runs graphs unless it is told to behave like 2.x, which the tests expect.
    TF2_BEHAVIOR=1 TF_CPP_MIN_LOG_LEVEL=2 "$python" -m pytest -q -p no:cacheprovider --durations=8 "${chosen[@]}" ||
        failed+=("$release")
done
[ ${#skipped[@]} -eq 0 ] || echo "matrix: SKIPPED: ${skipped[*]}" >&2
[ ${#failed[@]} -eq 0 ] || { echo "matrix: FAILED: ${failed[*]}" >&2; exit 1; }
[ ${#skipped[@]} -eq 0 ] || [ "${MATRIX_MUST:-0}" != 1 ]
