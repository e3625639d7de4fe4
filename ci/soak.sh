#!/usr/bin/env bash
# Random calls between real ranks, every element checked (crates/foldcast/examples/soak.rs): with 2 to 8 ranks, each bound to its
# cores or left to the system, and with all ranks on one core. Before them simulated worlds (ci/sim.sh).
#
#   ci/soak.sh                   short: some seconds, and 500 worlds
#   ci/soak.sh 100000 [SEED]     so many calls in all, and 10,000 worlds; a new seed each day if none is given
#
# What fails prints its seed and how to repeat it.
set -euo pipefail
cd "$(dirname "$0")/.."

calls=${1:-1000}
seed=${2:-$(date +%Y%m%d)}
export FOLDCAST_TIMEOUT=${FOLDCAST_TIMEOUT:-300}
# What is tested is the library, not the settings of whoever runs this.
unset FOLDCAST_ALGO FOLDCAST_COSTS FOLDCAST_PRODUCT

ci/sim.sh "$([ "$calls" -gt 1000 ] && echo 10000 || echo 500)" ${2:+"$2"}

cargo build --release --locked --quiet -p foldcast-cli
cargo build --release --locked --quiet -p foldcast --example soak
target=${CARGO_TARGET_DIR:-target}/release

# ranks, part of the calls in percent, how the ranks are placed
runs=("2 30 bound" "3 15 bound" "4 15 bound" "5 8 free" "6 5 free" "7 5 free" "8 7 bound" "2 10 one-core" "3 5 one-core")
for run in "${runs[@]}"; do
    read -r ranks percent placed <<<"$run"
    place=() options=()
    case $placed in
        free) options=(--no-pin) ;;
        one-core)
            command -v taskset >/dev/null || { echo "soak: SKIPPED one-core: there is no taskset" >&2; continue; }
            place=(taskset -c "$(taskset -cp $$ | sed -E 's/.*: ([0-9]+).*/\1/')")
            ;;
    esac
    number=$((calls * percent / 100))
    start=$SECONDS
    if ! output=$("${place[@]}" "$target/foldcast" run -n "$ranks" "${options[@]}" -- \
        "$target/examples/soak" "$number" "$seed" 2>&1); then
        echo "$output"
        echo "soak: FAILED on $ranks ranks, $placed, seed $seed" >&2
        exit 1
    fi
    echo "soak: $number calls on $ranks ranks, $placed, seed $seed: right, in $((SECONDS - start)) s"
done
