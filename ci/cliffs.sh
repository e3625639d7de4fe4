#!/usr/bin/env bash
# Measures that twice the bytes take at most three times as long, for every doubling from 8 B to 256 MiB (float32 sum, out of
# place). Other programs on the machine disturb it: what is over is measured again, up to three times, and counts if it stays.
#
#   ci/cliffs.sh [RANKS...]      2, if not given
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked --quiet -p foldcast-cli
target=${CARGO_TARGET_DIR:-target}/release

# measure RANKS BYTES...: "bytes microseconds" of each
measure() {
    local ranks=$1 cases
    shift
    cases=$(printf '%s:f32:sum:out,' "$@")
    "$target/foldcast" bench allreduce --ranks "$ranks" --plain --cases "${cases%,}" |
        awk '$NF { if ($7 != "ok") { print "wrong result: " $0 > "/dev/stderr"; exit 1 } print $1, $4 }'
}

cliffs=()
for ranks in "${@:-2}"; do
    sizes=()
    for ((bytes = 8; bytes <= 256 << 20; bytes *= 2)); do sizes+=("$bytes"); done
    declare -A time=()
    while read -r bytes microseconds; do time[$bytes]=$microseconds; done < <(measure "$ranks" "${sizes[@]}")
    [ "${#time[@]}" -eq "${#sizes[@]}" ] || { echo "cliffs: the measuring on $ranks ranks failed" >&2; exit 1; }
    for bytes in "${sizes[@]::${#sizes[@]}-1}"; do
        pair="${time[$bytes]} ${time[$((2 * bytes))]}"
        for attempt in 1 2 3 4; do
            ratio=$(awk '{ printf "%.2f", $2 / $1 }' <<<"$pair")
            if awk -v ratio="$ratio" 'BEGIN { exit !(ratio <= 3) }' || [ $attempt -eq 4 ]; then break; fi
            pair=$(measure "$ranks" "$bytes" $((2 * bytes)) | awk '{ printf "%s ", $2 }')
        done
        verdict=ok
        if awk -v ratio="$ratio" 'BEGIN { exit ratio <= 3 }'; then verdict=CLIFF cliffs+=("$bytes B on $ranks ranks: $ratio"); fi
        read -r once twice <<<"$pair"
        printf '%2d ranks %10d B %12.2f us, twice %12.2f us: %5.2f %s\n' "$ranks" "$bytes" "$once" "$twice" "$ratio" $verdict
    done
    unset time
done
[ ${#cliffs[@]} -eq 0 ] && exit
printf 'cliffs: twice the bytes took more than three times as long: twice %s times\n' "${cliffs[@]}" >&2
exit 1
