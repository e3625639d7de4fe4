#!/usr/bin/env bash
# Counts instructions of the kernels and of small calls, under callgrind, and compares them with ci/instructions.json: what
# gets slower by more work is found without a clock. (Callgrind knows AVX2 and not AVX-512; it does not see what lines cost that
# change cores: that is for the benchmarks.)
#
#   ci/instructions.sh            compare; a count that is off by more than 3 % fails
#   ci/instructions.sh --update   keep the counts of this checkout
#
# Valgrind is installed if it is missing and apt may do so. Where it cannot be, or the processor is no x86-64 with AVX2,
# nothing is compared, and a line says so; with INSTRUCTIONS_MUST=1 that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

check=instructions must=${INSTRUCTIONS_MUST:-0}
. ci/needs.sh

get_valgrind || skip "there is no valgrind, and it cannot be installed here"
grep -qsw avx2 /proc/cpuinfo || skip "this processor has no AVX2"

cargo build --release --locked --quiet -p foldcast-engine --example instructions
python3 ci/instructions.py "${CARGO_TARGET_DIR:-target}/release/examples/instructions" "$@"
