#!/usr/bin/env bash
# Runs the tests of the crates without system calls under Miri, the interpreter that sees undefined behaviour: types, plan, the
# portable kernels, and the engine in simulated worlds; each test in its short form.
#
#   ci/miri.sh [CRATE...]     types, plan, kernels, engine
#
# Needs a nightly toolchain with Miri and fetches it. Where it cannot be had nothing is run, and a line says so; with MIRI_MUST=1 that
# is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    echo "miri: SKIPPED: $*" >&2
    [ "${MIRI_MUST:-0}" != 1 ]
    exit
}

command -v rustup >/dev/null || skip "there is no rustup to get a nightly toolchain"
cargo +nightly miri --version >/dev/null 2>&1 ||
    rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1 ||
    skip "there is no nightly toolchain with Miri, and it cannot be had"

export CARGO_TARGET_DIR=$PWD/build/miri
# Test data and seeds are files; time is the machine's.
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
# What a second does takes Miri minutes.
export PROPTEST_CASES=${PROPTEST_CASES:-4} FOLDCAST_FUZZ_CASES=${FOLDCAST_FUZZ_CASES:-20}
crates=("$@")
[ ${#crates[@]} -gt 0 ] || crates=(types plan kernels engine)
for crate in "${crates[@]}"; do
    start=$SECONDS
    case $crate in
        types) cargo +nightly miri test --quiet -p foldcast-types ;;
        plan) cargo +nightly miri test --quiet -p foldcast-plan --lib ;;
        kernels) cargo +nightly miri test --quiet -p foldcast-kernels ;;
        engine) cargo +nightly miri test --quiet -p foldcast-engine ;;
        *) echo "miri: no crate $crate" >&2; exit 2 ;;
    esac
    echo "miri: $crate: nothing found, in $((SECONDS - start)) s"
done
