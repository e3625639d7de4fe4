#!/usr/bin/env bash
# Runs the tests of shared memory, of the engine and of the public face between threads under ThreadSanitizer, which sees accesses
# that no order keeps apart. It sees one process: what ranks as threads do to each other, not what processes do.
#
# Needs a nightly toolchain with the standard library's sources and fetches them. Where they cannot be had nothing is run, and a line
# says so; with TSAN_MUST=1 that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

check=thread-sanitizer must=${TSAN_MUST:-0}
. ci/needs.sh

need_toolchain rust-src
target=$(rustup run nightly rustc -vV | sed -n 's/^host: //p')

export CARGO_TARGET_DIR=$PWD/build/tsan
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 ${TSAN_OPTIONS:-}"
export FOLDCAST_FUZZ_CASES=${FOLDCAST_FUZZ_CASES:-100}
run=(cargo +nightly test --quiet -Zbuild-std --target "$target")
"${run[@]}" -p foldcast-shm --lib --test processes "$@"
# Without its documentation, which rustdoc would build without the sanitizer.
"${run[@]}" -p foldcast-engine --lib --tests "$@"
"${run[@]}" -p foldcast-conformance --test cases "$@"
echo "thread-sanitizer: nothing found"
