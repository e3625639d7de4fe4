#!/usr/bin/env bash
# Measures what is asked of Foldcast in figures beside its speed, on two ranks, and prints a table: BENCHMARKING.md says what. Some
# four minutes, in which nothing else should run. Nothing is judged: it fails only if something could not be measured.
#
#   ci/figures.sh                       all
#   ci/figures.sh async late hog        these
#   ci/figures.sh --json FILE [...]     into a file too
#
# Needs .venv, made by `make setup`; for "mismatch" valgrind, which is installed if apt may do so.
set -euo pipefail
cd "$(dirname "$0")/.."

[ -x .venv/bin/python ] || { echo "figures: no .venv: run make setup" >&2; exit 1; }
# What is measured is the library, not the settings of whoever runs this.
unset FOLDCAST_ALGO FOLDCAST_PRODUCT FOLDCAST_TIMEOUT RANK WORLD_SIZE RANK_ID RANK_SIZE
export FOLDCAST_COSTS=off OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3

. ci/needs.sh
get_valgrind || true
cargo build --release --locked --quiet -p foldcast-cli
cargo build --release --locked --quiet -p foldcast --example figures --example beside_bench
cargo build --release --locked --quiet -p foldcast-shm --example note_bench
cargo build --release --locked --quiet -p foldcast-engine --example instructions
exec .venv/bin/python benches/figures/figures.py "$@"
