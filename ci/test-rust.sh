#!/usr/bin/env bash
# The Rust tests, and the model checker's run over the protocols in shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
# PYO3_PYTHON as in setup.sh: another value would build the Python binding anew.
if [ -x .venv/bin/python ]; then
    export PYO3_PYTHON=$PWD/.venv/bin/python
fi

cargo test --workspace --locked
if [ -f crates/shm/tests/loom.rs ]; then
    # A target directory of its own: with other RUSTFLAGS everything is built anew.
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom \
        cargo test --release --locked -p foldcast-shm --test loom
fi
