#!/usr/bin/env bash
# Ranks killed at random moments, in numpy, TensorFlow and Rust: every survivor must be told who died and how. Prints how long
# that took, by kind of death.
#
#   ci/chaos.sh                short: about a minute
#   ci/chaos.sh 1000 [SEED]    so many kills in all; a new seed each day if none is given
#
# What fails prints its seed and how to repeat it. Needs .venv, made by `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."

kills=${1:-300}
seed=${2:-$(date +%Y%m%d)}
python=.venv/bin/python
[ -x $python ] || { echo "chaos: no .venv: run make setup" >&2; exit 1; }
# What is tested is the library, not the settings of whoever runs this; and one thread for what is not tested.
unset FOLDCAST_ALGO FOLDCAST_PRODUCT RANK WORLD_SIZE RANK_ID RANK_SIZE RUST_BACKTRACE
export FOLDCAST_COSTS=off FOLDCAST_TIMEOUT=60 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3

cargo build --release --locked --quiet -p foldcast-cli
cargo build --release --locked --quiet -p foldcast --example chaos

results=$(mktemp)
trap 'rm -f "$results"' EXIT
failed=
# face, part of the kills in percent
for run in "numpy 65" "rust 30" "tensorflow 5"; do
    read -r face percent <<<"$run"
    if [ "$face" = tensorflow ] && ! $python -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("tensorflow"))'; then
        echo "chaos: SKIPPED tensorflow: it is not in .venv" >&2
        continue
    fi
    $python tests/chaos/chaos.py "$face" --kills $((kills * percent / 100)) --seed "$seed" --save "$results" || failed=1
done
$python tests/chaos/chaos.py report "$results" || failed=1
[ -z "$failed" ] || { echo "chaos: FAILED, seed $seed" >&2; exit 1; }
