#!/usr/bin/env bash
# The TensorFlow tests on the releases that scripts in the wild use, each in an environment of its own under build/matrix.
#
#   ci/tensorflow-matrix.sh            all releases, all tests
#   ci/tensorflow-matrix.sh --short    all releases, the tests that need one process only
#   ci/tensorflow-matrix.sh 2.6 1.15   these releases
#
# A release whose Python is not on this machine (pyenv's, or pythonX.Y on the PATH) is skipped, loudly; with
# MATRIX_MUST=1 that is a failure. The wheel is that of build/wheels: `make setup` makes it.
set -euo pipefail
cd "$(dirname "$0")/.."

# release, Python, requirements
releases=(
    "1.15|3.7|tensorflow==1.15.5 protobuf<3.21 numpy<1.19"
    "2.6|3.9|tensorflow==2.6.5 keras==2.6.* protobuf<3.21 numpy<1.20"
    "2.15|3.11|tensorflow-cpu==2.15.1 ml_dtypes"
)
one_process=(mechanics tags arguments synchronous fusion)

short=
wanted=()
for argument in "$@"; do
    case $argument in
        --short) short=1 ;;
        -*) echo "matrix: unknown option $argument" >&2; exit 2 ;;
        *) wanted+=("$argument") ;;
    esac
done

# interpreter VERSION: the newest of pyenv's of that version, else the one on the PATH.
interpreter() {
    local found
    found=$(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1.*/bin/python" | sort -V | tail -n 1) || true
    [ -n "$found" ] && echo "$found" && return
    command -v "python$1" || true
}

wheel=$(compgen -G 'build/wheels/foldcast-*.whl' | tail -n 1) || { echo "matrix: no wheel in build/wheels: run make setup" >&2; exit 1; }
skipped=()
failed=()
for entry in "${releases[@]}"; do
    IFS='|' read -r release python requirements <<<"$entry"
    if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $release "* ]]; then continue; fi
    base=$(interpreter "$python")
    if [ -z "$base" ]; then
        echo "matrix: SKIPPED TensorFlow $release: there is no Python $python on this machine" >&2
        skipped+=("$release")
        continue
    fi
    venv=build/matrix/$release
    read -ra packages <<<"$requirements"
    if [ "$(cat "$venv/.requirements" 2>/dev/null)" != "$base $requirements" ]; then
        rm -rf "$venv"
        mkdir -p build/matrix
        "$base" -m venv "$venv"
        "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "${packages[@]}" pytest
        echo "$base $requirements" >"$venv/.requirements"
    fi
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --force-reinstall "$wheel"
    tests=()
    for name in "${one_process[@]}"; do tests+=("tests/python/test_tensorflow_$name.py"); done
    [ -n "$short" ] || tests+=(tests/python/test_tensorflow_old.py tests/python/test_tensorflow_ranks.py)
    echo "matrix: TensorFlow $release, $("$venv/bin/python" --version)"
    # 1.15 runs graphs unless it is told to behave like 2.x, which the tests expect.
    TF2_BEHAVIOR=1 TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}" ||
        failed+=("$release")
done
[ ${#skipped[@]} -eq 0 ] || echo "matrix: SKIPPED: ${skipped[*]}" >&2
[ ${#failed[@]} -eq 0 ] || { echo "matrix: FAILED: ${failed[*]}" >&2; exit 1; }
[ ${#skipped[@]} -eq 0 ] || [ "${MATRIX_MUST:-0}" != 1 ]
