#!/usr/bin/env bash
# Runs the tests of the crates without system calls under Miri, the interpreter that sees undefined behaviour: types, plan, the
# portable kernels, and the engine in simulated worlds; each test in its short form.
#
#   ci/miri.sh [CRATE...]     types, plan, kernels, engine
#   ci/miri.sh --short        of the kernels what shared memory is read and written by
#
# Needs a nightly toolchain with Miri and fetches it. Where it cannot be had nothing is run, and a line says so; with MIRI_MUST=1 that
# is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

check=miri must=${MIRI_MUST:-0}
. ci/needs.sh

need_toolchain miri rust-src
export CARGO_TARGET_DIR=$PWD/build/miri
# Test data and seeds are files; time is the machine's.
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
# What a second does takes Miri minutes; the tests look at cfg!(miri) too.
export PROPTEST_CASES=${PROPTEST_CASES:-4}
# Miri takes seconds for each backtrace of a panic that a test expects.
export RUST_BACKTRACE=0
crates=("$@")
[ ${#crates[@]} -gt 0 ] || crates=(types plan kernels engine)
[ "${crates[*]}" != --short ] || crates=(shared)
for crate in "${crates[@]}"; do
    start=$SECONDS
    case $crate in
        types) tests=(-p foldcast-types --lib) ;;
        plan) tests=(-p foldcast-plan --lib) ;;
        kernels) tests=(-p foldcast-kernels --lib --tests) ;;
        shared) tests=(-p foldcast-kernels --test fold -- contract:: properties::copies_copy) ;;
        engine) tests=(-p foldcast-engine --lib --test worlds) ;;
        *) echo "miri: no crate $crate" >&2; exit 2 ;;
    esac
    cargo +nightly miri test --quiet --locked "${tests[@]}"
    echo "miri: $crate: nothing found, in $((SECONDS - start)) s"
done
