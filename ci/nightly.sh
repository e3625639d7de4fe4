#!/usr/bin/env bash
# What needs a nightly toolchain: undefined behaviour by Miri, inputs by libFuzzer, races by ThreadSanitizer.
#
#   ci/nightly.sh          short, as .ci/run has it: Miri on what reads and writes shared bytes, two readers of foreign bytes for 5 s each. It
#                          fetches nothing: what is missing is skipped, loudly, with the command that gets it
#   ci/nightly.sh --long   all of it, and valgrind; fetches what is missing
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
    "")
        export NIGHTLY_FETCH=0
        ci/miri.sh --short
        ci/fuzz.sh --short
        ;;
    --long)
        ci/miri.sh
        ci/fuzz.sh 10
        ci/thread-sanitizer.sh
        ci/memcheck.sh
        ;;
    *)
        echo "nightly: expected --long or nothing, got $1" >&2
        exit 2
        ;;
esac
