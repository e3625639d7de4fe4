#!/usr/bin/env bash
# Jobs killed at random moments: one rank, all ranks, the launcher, or all. Afterwards no process, file, socket or IPC object
# of theirs may be left.
#
#   ci/leaks.sh                short: about a minute
#   ci/leaks.sh 1000 [SEED]    so many jobs; a new seed each day if none is given
#
# What others reported: 100,000 segments left in /dev/shm (ompi 7220), pods that crash in a loop because of them (sglang 40723).
#
# Where it may, it runs in namespaces of its own, in which everything that is left counts. Needs .venv, made by `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-500}
seed=${2:-$(date +%Y%m%d)}
python=$PWD/.venv/bin/python
[ -x "$python" ] || { echo "leaks: no .venv: run make setup" >&2; exit 1; }
unset FOLDCAST_ALGO FOLDCAST_PRODUCT RANK WORLD_SIZE RANK_ID RANK_SIZE RUST_BACKTRACE
export FOLDCAST_COSTS=off OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

cargo build --release --locked --quiet -p foldcast-cli
cargo build --release --locked --quiet -p foldcast --example chaos

# A network of its own has its own abstract sockets; a process 1 of its own sees its own processes only.
spaces=(unshare --net --ipc --mount --pid --fork --mount-proc)
[ "$(id -u)" -eq 0 ] || spaces+=(--map-root-user)
inside='mount -t tmpfs none /tmp && mount -t tmpfs none /var/tmp && { [ ! -d /dev/shm ] || mount -t tmpfs -o size=16m none /dev/shm; }
    LEAKS_ALONE=1 exec "$@"'
# Unless what is tested lies where they would hide it.
case $PWD in /tmp/* | /var/tmp/*) inside=false ;; esac
if "${spaces[@]}" sh -c "$inside" sh true 2>/dev/null; then
    exec "${spaces[@]}" sh -c "$inside" sh "$python" tests/chaos/leaks.py "$jobs" --seed "$seed"
fi
echo "leaks: SKIPPED the namespaces: they cannot be had here" >&2
exec "$python" tests/chaos/leaks.py "$jobs" --seed "$seed"
