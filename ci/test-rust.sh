#!/usr/bin/env bash
# The Rust tests, and the model checker's run over the protocols in shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
# PYO3_PYTHON as in setup.sh: another value would build the Python binding anew.
if [ -x .venv/bin/python ]; then
    export PYO3_PYTHON=$PWD/.venv/bin/python
fi

cargo test --workspace --locked
if ls crates/shm/tests/*loom*.rs >/dev/null 2>&1; then
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-2} CARGO_TARGET_DIR=target/loom \
        cargo test --release --locked -p foldcast-shm --test '*loom*'
fi
