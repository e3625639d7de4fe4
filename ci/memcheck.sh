#!/usr/bin/env bash
# Runs tests of the numpy face under valgrind's memcheck, which sees reads of what nobody wrote and accesses beyond an allocation, in the
# engine as it is released. Python's own allocator is off: it would hide them.
#
#   ci/memcheck.sh [pytest arguments]     the numpy tests that do not wait by the clock
#
# Valgrind is installed if it is missing and apt may do so. Where it cannot be nothing is run, and a line says so; with
# MEMCHECK_MUST=1 that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

check=memcheck must=${MEMCHECK_MUST:-0}
. ci/needs.sh

get_valgrind || skip "there is no valgrind, and it cannot be installed here"
[ -x .venv/bin/python ] || skip "there is no .venv: run make setup"

logs=$PWD/build/memcheck
rm -rf "$logs"
mkdir -p "$logs"
# The ranks' interpreter is valgrind's: the tests start what FOLDCAST_TEST_PYTHON says in the place of Python.
cat >"$logs/python" <<END
#!/bin/sh
exec valgrind --quiet --tool=memcheck --leak-check=no --undef-value-errors=yes --num-callers=30 \\
    --suppressions=$PWD/ci/memcheck.supp --log-file=$logs/%p.log $PWD/.venv/bin/python "\$@"
END
chmod +x "$logs/python"
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(tests/python/test_numpy_{arrays,bits,fused,mismatch,moves,results}.py)
PYTHONMALLOC=malloc FOLDCAST_TEST_PYTHON=$logs/python FOLDCAST_TEST_PATIENCE=20 FOLDCAST_TIMEOUT=600 FOLDCAST_INIT_TIMEOUT=600 \
    .venv/bin/python -m pytest -q -p no:cacheprovider "${tests[@]}" || failed=1
# What the interpreter and others do with their own memory is not judged: an error counts if Foldcast is in its stack.
found=$(cat "$logs"/*.log | sed -E 's/^==[0-9]+== ?//' | awk 'BEGIN { RS = ""; ORS = "\n\n" } /foldcast/')
if [ "${failed:-0}" = 1 ] || [ -n "$found" ]; then
    head -n 200 <<<"$found" >&2
    echo "memcheck: FAILED (see above, and build/memcheck)" >&2
    exit 1
fi
echo "memcheck: $(find "$logs" -name '*.log' | wc -l) processes: nothing found in Foldcast"
