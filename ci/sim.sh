#!/usr/bin/env bash
# Simulated worlds that run the real engine (crates/sim): the schedule, the faults and what each rank has seen follow from a seed.
#
#   ci/sim.sh                 short: 500 worlds
#   ci/sim.sh 10000 [SEED]    so many; from another seed each day if none is given
#
# What fails prints its seed, the last steps of the smallest world that fails in the same way, and how to see it again.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-500}
first=${2:-$(date +%Y%m%d)000000}
cargo build --release --locked --quiet -p foldcast-sim
"${CARGO_TARGET_DIR:-target}/release/foldcast-sim" --seeds "$seeds" --first "$first"
