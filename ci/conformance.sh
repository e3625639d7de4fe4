#!/usr/bin/env bash
# The conformance suite in its long form (conformance/README.md): more sizes, and more than 2^31 elements, which takes 5 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
CONFORMANCE_LONG=1 cargo test --release --locked -p foldcast-conformance
[ -x .venv/bin/python ] || { echo "conformance: SKIPPED conformance/python: no .venv: run make setup" >&2; exit; }
CONFORMANCE_LONG=1 .venv/bin/python -m pytest conformance/python
