#!/usr/bin/env bash
# Gives the readers of foreign bytes to libFuzzer (fuzz/README.md).
#
#   ci/fuzz.sh                       each target for 10 s
#   ci/fuzz.sh SECONDS [TARGET...]   each of these targets, or of all, for so long
#   ci/fuzz.sh --short               two targets that any process of the host reaches, for 5 s each: little is built for them
#
# Needs a nightly toolchain and cargo-fuzz, and fetches what is missing. Where that cannot be had nothing is run, and a line says so;
# with FUZZ_MUST=1 that is a failure. What libFuzzer finds out about a target stays in build/fuzz/corpus for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."

check=fuzz must=${FUZZ_MUST:-0}
. ci/needs.sh

options=() make_seeds=1
if [ "${1:-}" = --short ]; then
    set -- 5 packet handed_over
    options=(--no-default-features) make_seeds=0
fi
seconds=${1:-10}
[ $# -eq 0 ] || shift
[[ $seconds =~ ^[0-9]+$ ]] || { echo "fuzz: not a number of seconds: $seconds" >&2; exit 2; }

need_toolchain
tools=$PWD/build/tools
export PATH=$tools/bin:$PATH
get=(cargo install --quiet --locked --root "$tools" cargo-fuzz)
if ! command -v cargo-fuzz >/dev/null; then
    [ "${NIGHTLY_FETCH:-1}" = 1 ] || skip "there is no cargo-fuzz; this gets it: ${get[*]}"
    "${get[@]}" >/dev/null 2>&1 || skip "there is no cargo-fuzz, and it cannot be had: ${get[*]}"
fi

mapfile -t all < <(sed -n 's/^path = "targets\/\(.*\)\.rs"$/\1/p' fuzz/Cargo.toml)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
    [[ " ${all[*]} " == *" $target "* ]] || { echo "fuzz: no target $target; there are ${all[*]}" >&2; exit 2; }
done

# The seeds that the crates make themselves; what they once made is in fuzz/seeds.
made=$PWD/build/fuzz/made
rm -rf "$made"
mkdir -p build/fuzz
if [ $make_seeds = 1 ] && ! FOLDCAST_FUZZ_SEEDS=$made FOLDCAST_FUZZ_CASES=1 cargo test --quiet --locked -p foldcast-types -p foldcast-plan \
    -p foldcast-shm -p foldcast -p foldcast-cli -p foldcast-tensorflow --lib --bins hostile:: >build/fuzz/made.log 2>&1; then
    tail -n 60 build/fuzz/made.log
    echo "fuzz: FAILED: the seeds could not be made" >&2
    exit 1
fi

failed=()
for target in "${targets[@]}"; do
    corpus=$PWD/build/fuzz/corpus/$target
    mkdir -p "$corpus" "$made/$target" "fuzz/seeds/$target"
    echo "fuzz: $target for $seconds s"
    if ! cargo +nightly fuzz run --fuzz-dir fuzz --target-dir build/fuzz/target "${options[@]}" "$target" \
        "$corpus" "$made/$target" "$PWD/fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 >"build/fuzz/$target.log" 2>&1; then
        grep -A 5 "panicked at" "build/fuzz/$target.log" || true
        tail -n 40 "build/fuzz/$target.log"
        failed+=("$target")
        continue
    fi
    sed -n 's/^stat::number_of_executed_units: */fuzz: inputs tried: /p' "build/fuzz/$target.log"
done
rmdir fuzz/seeds/* 2>/dev/null || true
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: FAILED: ${failed[*]} (see build/fuzz/TARGET.log)" >&2; exit 1; }
echo "fuzz: ${#targets[@]} targets, ${seconds} s each: nothing found"
